"""The counters of a running proxy, for the same request streamed and whole (field report R69)."""

from __future__ import annotations

import pytest

from tests.running_proxy import run_proxy
from tests.support import StubServer

COUNTERS = ("slotwise_prompt_tokens_total", "slotwise_expected_cached_tokens_total")


def counted(stub: StubServer, stream: bool) -> dict[str, float]:
    """What two equal requests add to the counters of a new proxy on empty slots."""
    stub.empty()
    with run_proxy(stub) as proxy:
        # the proxy's own questions to the engine left something in its slots
        stub.empty()
        for _ in range(2):
            assert proxy.chat("word " * 200, stream=stream).status_code == 200
        return {k: v for k, v in proxy.metrics().items() if k.startswith(COUNTERS) and v}


def by_source(counters: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in counters.items():
        source = name.partition('source="')[2].partition('"')[0] or "expected"
        found[source] = found.get(source, 0) + value
    return found


def test_streamed_and_whole_requests_give_the_same_counters(two_slots: StubServer) -> None:
    whole, streamed = (counted(two_slots, stream) for stream in (False, True))
    assert whole == streamed
    n = two_slots.requests()[-1]["n_prompt"]
    assert by_source(whole) == {"cached": n - 1, "evaluated": n + 1, "expected": n - 1}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_usage_counts_as_unknown(two_slots: StubServer, stream: bool) -> None:
    stub = two_slots
    with run_proxy(stub) as proxy:
        stub.configure(usage="none")
        assert proxy.chat("word " * 200, stream=stream).status_code == 200
        counters = {k: v for k, v in proxy.metrics().items() if k.startswith(COUNTERS) and v}
    assert by_source(counters) == {"unknown": stub.requests()[-1]["n_prompt"]}
