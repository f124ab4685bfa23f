"""slotwise before a real engine, with what it tells of every request it served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slotwise.launcher.model.gguf_header import read_vocabulary
from slotwise.policies.params import from_mapping
from slotwise.proxy.history.record import Record
from slotwise.proxy.serving.served import ServedProfile
from slotwise.proxy.tokens.encoders import Source
from tests.engine.engines import RunningEngine
from tests.engine.talk import TINY_RATES
from tests.proxy.client_shapes import Wire
from tests.running_proxy import RunningProxy, run_proxy
from tests.support import wait_until

_PROOF_LIMIT_S = 30
# Requests come one at a time: nothing gets better by waiting.
_AT_ONCE = {"keep": False}


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: its text, what the engine reports of its prompt, and slotwise's account."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    record: Record

    @property
    def causes(self) -> dict[str, int]:
        """Tokens by cause. They add up, and ``cached`` is the engine's, or the test ends here."""
        causes = {cause.value: count for cause, count in self.record.tokens().items()}
        assert sum(causes.values()) == self.record.prompt_tokens == self.prompt_tokens
        assert causes.get("cached", 0) == self.record.cached == self.cached_tokens
        return causes

    @property
    def changed(self) -> tuple[str, int]:
        """Section and message of the first difference to the conversation so far."""
        assert self.record.changed is not None
        return self.record.changed.section, self.record.changed.message


@contextmanager
def accounted(
    engine: RunningEngine,
    model: Path,
    policy: dict[str, Any] | None = None,
    profile: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[RunningProxy]:
    """slotwise in front of one engine, its prompts known by section. ``policy`` as in a profile."""
    params, faults = from_mapping({**TINY_RATES, **_AT_ONCE, **(policy or {})})
    assert not faults, faults
    source = Source(partial(read_vocabulary, model))
    served = ServedProfile("p", params=params, tokenizer=source, **(profile or {}))
    with run_proxy(engine.url, profile=served, **options) as proxy:

        def proven() -> bool:
            profile_figures = proxy.inside(proxy.driver.tokenizer.job_statuses)
            return all(standing.state != "proving" for standing in profile_figures["p"])

        wait_until(proven, _PROOF_LIMIT_S)
        yield proxy


def send(proxy: RunningProxy, wire: Wire, max_tokens: int = 8) -> Told:
    """A client's request with its answer cut short, and what became of its prompt."""
    body = {**wire.body, "max_tokens": max_tokens, "temperature": 0}
    body.pop("model", None)
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    answer = proxy.client.post(wire.path, json=body, headers=wire.headers)
    assert answer.status_code == 200, answer.text
    id = answer.headers["X-Slotwise-Request-Id"]
    wait_until(lambda: proxy.inside(lambda: proxy.driver.history.record(id)) is not None, 5)
    record = proxy.inside(lambda: proxy.driver.history.record(id))
    assert record is not None
    text, usage = _streamed(answer.text) if body.get("stream") else _whole(answer.json())
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Told(text, usage["prompt_tokens"], cached, record)


def _whole(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return answer["choices"][0]["message"]["content"], answer["usage"]


def _streamed(stream: str) -> tuple[str, dict[str, Any]]:
    text = ""
    usage: dict[str, Any] = {}
    for line in stream.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
    return text, usage
