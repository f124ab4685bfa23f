"""The text of the series is the library's own, and making it leaves the loop to others."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

from slotwise.proxy.core.events import EngineReady
from slotwise.proxy.telemetry import engine_metrics
from slotwise.proxy.telemetry.metrics import Metrics


class Told(Collector):
    """Families of somebody else's making."""

    def collect(self) -> list[Metric]:
        known = Metric("engine:speed", "tokens/s \\ \n all", "gauge")
        known.add_sample("engine:speed", {"engine": 'a"b\\c\nd', "at": "é"}, 1.25)
        unknown = Metric("engine:what", "", "unknown")
        unknown.add_sample("engine:what", {}, float("nan"))
        return [known, unknown, Metric("engine:none", "nothing yet", "counter")]


def test_the_text_is_byte_for_byte_the_librarys() -> None:
    registry = CollectorRegistry()
    counter = Counter("c_total", "A counter.", ("z", "a"), registry=registry)
    for n, value in enumerate((0, 1, 2.5, 1e6, 123456789012.0, 1e21, float("inf"))):
        counter.labels(str(n), "x").inc(value)
    Gauge("g", "A gauge\nof \\ lines.", registry=registry).set(-0.1)
    Histogram("h", "Seconds.", ("k",), registry=registry, buckets=(0.1, 5)).labels("v").observe(1)
    registry.register(Told())
    for _ in range(2):  # the second time from what was remembered
        assert b"".join(engine_metrics.families(registry)) == generate_latest(registry)


def test_so_are_our_own_series() -> None:
    metrics = Metrics(["p", "q"])
    metrics.observe(EngineReady("e", "p", (4096,) * 4, None, True), [], 0.0)
    body, _ = metrics.exposition()
    assert body == generate_latest(metrics._registry)
    assert asyncio.run(metrics.exposition_in_turns())[0] == body


def test_others_have_a_turn_after_each_family() -> None:
    async def run() -> tuple[int, int]:
        metrics, turns = Metrics(["p"]), 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        working = asyncio.create_task(other())
        body, _ = await metrics.exposition_in_turns()
        working.cancel()
        return turns, body.count(b"# TYPE ")

    turns, families = asyncio.run(run())
    assert families > 20
    assert turns >= families
