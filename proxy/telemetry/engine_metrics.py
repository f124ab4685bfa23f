"""What the engines say of themselves, on our ``/metrics``: their series with an ``engine`` label.

llama-server's speed gauges are means *since the last time anybody asked*, so two who scrape it
disturb each other, and each question restarts the timer by which it notices that a client hung up.
So slotwise is the only one that asks: no oftener than every 5 s, and only while somebody scrapes
slotwise. An engine that is slow to answer holds nobody up: what it said last is shown meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def families(registry: CollectorRegistry) -> Iterator[bytes]:
    """The text of one family after the other."""
    for family in registry.collect():
        yield generate_latest(cast(CollectorRegistry, _One(family)))


async def in_turns(registry: CollectorRegistry) -> bytes:
    """All of it; whoever else waits for the loop has a turn after each family."""
    parts = []
    for part in families(registry):
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts)


class _One(NamedTuple):
    """A registry of one family."""

    family: Metric

    def collect(self) -> tuple[Metric]:
        return (self.family,)


log = logging.getLogger(__name__)

EVERY_S = 5.0
WAIT_S = 0.5  # what an engine may delay an answer of ours
ANSWER_LIMIT_S = 4.0  # a question is over before the next one is due
STALE_S = 30.0  # older figures are no longer shown
MAX_BYTES = 64 * 1024
MAX_SAMPLES = 100  # of one engine; llama-server has some 15, more once it speculates
_OURS = re.compile(r"llamacpp:[a-zA-Z0-9_]+")  # no other program's names, least of all our own
_COUNTER = re.compile(r"^# TYPE (\S+) counter\s*$", re.MULTILINE)


@dataclass(slots=True)
class _Told:
    """What one life of an engine said last."""

    client: EngineClient
    asked_at: float = float("-inf")
    told_at: float = float("-inf")
    families: list[Metric] = field(default_factory=list)
    asking: asyncio.Task[None] | None = None


class EngineMetrics(Collector):
    """Of all engines. ``clock``: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[str, _Told] = {}

    async def refresh(self, up: Mapping[str, EngineClient]) -> None:
        """Ask those that were not asked lately; returns within ``WAIT_S``, whatever they do.

        ``up``: the engines that run, by name.
        """
        now = self._clock()
        for name, client in up.items():
            known = self._told.get(name)
            if known is None or known.client is not client:  # a new life
                known = self._told[name] = _Told(client)
            if known.asking is None and now - known.asked_at >= EVERY_S:
                known.asked_at = now
                known.asking = asyncio.create_task(self._ask(name, known))
        for gone in self._told.keys() - up.keys():
            del self._told[gone]
        asking = {
            reported.asking for reported in self._told.values() if reported.asking is not None
        }
        if asking:
            await asyncio.wait(asking, timeout=WAIT_S)

    async def _ask(self, name: str, reported: _Told) -> None:
        try:
            answer = await reported.client.exchange("GET", "/metrics", timeout_s=ANSWER_LIMIT_S)
            if answer.status_code == 200 and len(answer.content) <= MAX_BYTES:
                reported.families = parse(answer.content.decode(), name)
                reported.told_at = self._clock()
        except (EngineUnreachableError, ValueError) as error:
            log.debug("engine %s: no series: %s", name, error)
        finally:
            reported.asking = None

    def collect(self) -> Iterator[Metric]:
        """Each family once, the engines' samples together: the text format wants it so."""
        merged: dict[str, Metric] = {}
        now = self._clock()
        for reported in self._told.values():
            for family in reported.families if now - reported.told_at < STALE_S else ():
                whole = merged.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                whole.samples += family.samples
        yield from merged.values()


def parse(text: str, engine: str) -> list[Metric]:
    """An engine's text as families with an ``engine`` label; raises ValueError.

    llama-server calls the longest sequence it has seen a counter. It is a high-water mark, and
    like whatever does not end in ``_total`` a gauge here; the parser would give it that ending.
    """
    marks = {name for name in _COUNTER.findall(text) if not name.endswith("_total")}
    families: list[Metric] = []
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for given in text_string_to_metric_families(text):
        if not _OURS.fullmatch(given.name) or given.type not in ("counter", "gauge", "unknown"):
            continue
        is_counter = given.type == "counter" and given.name not in marks
        family = Metric(given.name, given.documentation, "counter" if is_counter else "gauge")
        name = f"{given.name}_total" if is_counter else given.name
        for sample in given.samples:
            labels = {**sample.labels, "engine": engine}
            identity = (name, frozenset(labels.items()))
            if identity in seen or len(seen) == MAX_SAMPLES:
                continue
            seen.add(identity)
            family.add_sample(name, labels, sample.value)
        if family.samples:
            families.append(family)
    return families
