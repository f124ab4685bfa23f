"""Requests whose whole life is told to the metrics, and the samples that come of it."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from slotwise.policies.prefix import pack
from slotwise.policies.types import Reason, Request, Rule, SlotId
from slotwise.proxy.core.events import Dispatch, RequestArrived, RequestFinished
from slotwise.proxy.telemetry.metrics import Metrics

PROMPT_TOKENS = "slotwise_prompt_tokens_total"


def request(id: str, n: int = 10, stream: bool = True) -> Request:
    return Request(id, "p", pack(range(n)), 0, 1, None, stream, key="k")


def dispatch(id: str, id_slot: int = 0, rule: Rule = Rule.HOME, expected: int = 6) -> Dispatch:
    slot = SlotId("p-0", id_slot)
    return Dispatch(id, slot, rule, expected, 1.5, Reason.HOME_BUSY, None, why="")


def finished(id: str, prompt: int | None = 10, cached: int | None = 7, **more: Any) -> Any:
    return RequestFinished(id, prompt, cached, 3, more.get("id_slot"))


def run(metrics: Metrics, id: str, end: Any, **how: Any) -> None:
    metrics.observe(RequestArrived(request(id)), [dispatch(id, **how)], now=1)
    metrics.observe(end, [], now=2)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, _ = metrics.exposition()
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(body.decode())
        for s in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def nonzero(metrics: Metrics, name: str) -> dict[str, float]:
    """The samples of one series that are not 0, keyed by their label values, sorted by label."""
    return {
        "/".join(v for _, v in sorted(labels)): n
        for (found, labels), n in samples(metrics).items()
        if found == name and n
    }
