"""The engines' own series on ``/metrics``: passed on, told apart, and never in anybody's way."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import Metric

from slotwise.proxy.telemetry.engine_metrics import (
    ANSWER_LIMIT_S,
    EVERY_S,
    MAX_SAMPLES,
    STALE_S,
    WAIT_S,
    EngineMetrics,
    parse,
)
from slotwise.proxy.telemetry.metrics import Metrics
from tests.running_proxy import RunningProxy, run_proxy
from tests.support import START_LIMIT_S, StubServer, wait_until


def by_name(families: list[Metric]) -> dict[str, Metric]:
    return {family.name: family for family in families}


def test_every_sample_gets_the_engines_name() -> None:
    text = '# TYPE llamacpp:x_total counter\nllamacpp:x_total{position="2",engine="liar"} 7\n'
    (family,) = parse(text, "e0")
    (sample,) = family.samples
    assert (family.type, sample.name, sample.value) == ("counter", "llamacpp:x_total", 7)
    assert sample.labels == {"position": "2", "engine": "e0"}


def test_a_high_water_mark_is_a_gauge() -> None:
    (family,) = parse("# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 12\n", "e0")
    assert (family.type, family.samples[0].name) == ("gauge", "llamacpp:n_tokens_max")


def test_an_engine_cannot_speak_in_our_name() -> None:
    text = "# TYPE slotwise_engine_up gauge\nslotwise_engine_up 1\nllamacpp:a 1\nup 1\n"
    assert list(by_name(parse(text, "e0"))) == ["llamacpp:a"]


def test_what_is_said_twice_counts_once_and_no_engine_says_too_much() -> None:
    text = "llamacpp:a 1\nllamacpp:a 2\n" + "".join(f"llamacpp:m{n} 1\n" for n in range(300))
    families = by_name(parse(text, "e0"))
    assert [sample.value for sample in families["llamacpp:a"].samples] == [1]
    assert sum(len(family.samples) for family in families.values()) == MAX_SAMPLES


@pytest.mark.parametrize("text", ["{", "llamacpp:a one", "llamacpp:a{x 1"])
def test_what_is_no_exposition_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the parser's own words)
        parse(text, "e0")


def test_two_engines_share_a_family(stub: StubServer) -> None:
    with StubServer() as other, run_proxy(stub, other) as proxy:
        wait_until(lambda: sum("llamacpp:n_tokens_max" in name for name in proxy.metrics()) == 2)
        text = proxy.client.get("/metrics").text
        assert text.count("# TYPE llamacpp:n_tokens_max gauge\n") == 1
        for engine in ("p-0", "p-1"):
            assert proxy.metrics()[f'llamacpp:prompt_tokens_total{{engine="{engine}"}}'] == 9


class Clock:
    """The time as the engines' series see it."""

    def __init__(self, proxy: RunningProxy) -> None:
        self.now = 1000.0
        self.metrics = EngineMetrics(lambda: self.now)
        held: Metrics = proxy.driver.metrics

        def take_over() -> None:
            held._registry.unregister(held.engines)
            held.engines = self.metrics
            held._registry.register(self.metrics)

        proxy.inside(take_over)


def questions(stub: StubServer) -> int:
    asked: int = stub.log()["helpers"].get("/metrics", 0)
    return asked


def engine_says(proxy: RunningProxy) -> bool:
    return 'llamacpp:n_tokens_max{engine="p-0"}' in proxy.metrics()


def test_an_engine_is_asked_only_when_we_are_and_not_often(stub: StubServer) -> None:
    with run_proxy(stub) as proxy:
        clock = Clock(proxy)
        assert questions(stub) == 0
        wait_until(lambda: engine_says(proxy))
        assert all(engine_says(proxy) for _ in range(5))
        assert questions(stub) == 1
        clock.now += EVERY_S
        assert engine_says(proxy)
        wait_until(lambda: questions(stub) == 2)


@pytest.mark.slow
def test_a_silent_engine_holds_nobody_up_and_is_not_quoted_for_long(stub: StubServer) -> None:
    with run_proxy(stub) as proxy:
        clock = Clock(proxy)
        wait_until(lambda: engine_says(proxy))
        stub.configure(metrics_hang=True)
        clock.now += EVERY_S
        began = time.monotonic()
        assert engine_says(proxy)  # what it said last
        # Longer than the bound on a busy machine, but not as long as an engine may take to answer.
        assert WAIT_S / 2 < time.monotonic() - began < ANSWER_LIMIT_S
        clock.now += STALE_S
        assert not engine_says(proxy)
        assert proxy.metrics()['slotwise_engine_up{engine="p-0"}'] == 1


def test_an_engine_that_is_gone_says_nothing(stub: StubServer) -> None:
    with run_proxy(stub) as proxy:
        wait_until(lambda: engine_says(proxy))
        proxy.inside(lambda: proxy.driver.engines.down("p-0", "exited"))
        assert not engine_says(proxy)
        wait_until(lambda: proxy.metrics()['slotwise_engine_up{engine="p-0"}'] == 0)


def test_a_new_life_is_not_quoted_with_the_words_of_the_old_one(stub: StubServer) -> None:
    with run_proxy(stub) as proxy:
        wait_until(lambda: engine_says(proxy))
        stub.configure(metrics_hang=True)
        again = proxy.driver.engines.up("p-0", "p", stub.url, None)
        assert asyncio.run_coroutine_threadsafe(again, proxy.loop).result(START_LIMIT_S)
        assert not engine_says(proxy)
