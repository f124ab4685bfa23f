"""A registry as Prometheus text, family by family, so that a scrape holds up no stream.

The same bytes as ``prometheus_client.generate_latest``, which works out every line anew and all of
them at once: some milliseconds in which the event loop forwards nothing. A line's name and labels
are made once here, since the label sets are few and stay, and between two families the loop gets a
turn. A thread would not help: it holds the interpreter for as long as that before it lets go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import lru_cache

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_LINES = 16_384  # remembered beginnings; a profile with an engine of four slots has 700
_TYPES = {"unknown": "untyped"}  # as the text format calls it
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED_VALUE = _ESCAPED | str.maketrans({'"': r"\""})


def families(registry: CollectorRegistry) -> Iterator[bytes]:
    """The text of one family after the other."""
    for family in registry.collect():
        yield _text(family).encode()


async def in_turns(registry: CollectorRegistry) -> bytes:
    """All of it; whoever else waits for the loop has a turn after each family."""
    parts = []
    for part in families(registry):
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts)


def _text(family: Metric) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    lines = [
        f"# HELP {name} {family.documentation.translate(_ESCAPED)}\n"
        f"# TYPE {name} {_TYPES.get(family.type, family.type)}\n"
    ]
    for sample in family.samples:
        begin = _beginning(sample.name, tuple(sample.labels.items()))
        value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
        lines.append(f"{begin} {value}\n")
    return "".join(lines)


@lru_cache(_MOST_LINES)
def _beginning(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    told = ",".join(
        f'{label}="{value.translate(_ESCAPED_VALUE)}"' for label, value in sorted(labels)
    )
    return f"{name}{{{told}}}" if told else name
