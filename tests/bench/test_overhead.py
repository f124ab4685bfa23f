"""The overhead benchmark counts and times what is there, and starts what it says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slotwise.bench.cost import overhead
from slotwise.bench.cost.fake_engine import FakeEngine
from slotwise.bench.cost.overhead import (
    DIRECT,
    LONG,
    NGINX,
    SHORT,
    OverheadFigures,
    Target,
    report,
    verdicts,
)
from slotwise.bench.cost.overhead_load import CHAT, LAST_CHUNK, LoadError, Talker, post, streams

OURS = "slotwise"


@contextmanager
def fake() -> Iterator[str]:
    """A fake engine in a thread, without a real one behind it; its URL."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = FakeEngine(listener, "http://127.0.0.1:9", slots=4, window=4096)
        serving = threading.Thread(target=engine.serve, args=(ended.is_set,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            serving.join(10)
    assert not serving.is_alive()


def asked(events: int, pace_us: int = 0, **more: object) -> bytes:
    body = {"messages": [], "stream": True, "max_tokens": events, "pace_us": pace_us, **more}
    return post(CHAT, body)


def test_every_event_of_every_stream_is_counted() -> None:
    with fake() as url:
        told = 3  # role, finish and [DONE]
        for count, events in ((1, 20_000), (4, 5000)):
            flow = streams(url, [asked(events)] * count)
            assert flow.whole == count * (events - 1 + told)
            assert 0 < flow.events < flow.whole


@pytest.mark.slow
def test_a_paced_stream_takes_its_time_and_its_first_token_does_not() -> None:
    with fake() as url:
        meter = iter((3.0, 5.0))
        flow = streams(url, [asked(51, pace_us=2000)] * 2, lambda: next(meter))
        assert 0.05 <= flow.seconds < 5
        assert flow.metered == 2
        with Talker(url) as talker:
            first_s = min(talker.first_token_s(asked(3, pace_us=50_000)) for _ in range(5))
            assert first_s < 0.05, "the tokens behind the first are not waited for"


@contextmanager
def in_one_piece() -> Iterator[str]:
    """A server whose one answer arrives whole, so that nothing comes between first and last."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head + b"data: {}\n\n" * 2 + LAST_CHUNK)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        serving = threading.Thread(target=answer)
        serving.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.join(10)


def test_streams_that_never_run_together_are_no_measurement() -> None:
    with in_one_piece() as url, pytest.raises(LoadError, match="too short"):
        streams(url, [asked(2)])


def test_a_talker_outlives_its_connection() -> None:
    with fake() as url, Talker(url) as talker:
        for _ in range(overhead.WARM + 100):
            assert talker.first_token_s(asked(2)) > 0


def test_an_answer_that_is_none_is_said() -> None:
    with fake() as url, Talker(url) as talker, pytest.raises(LoadError, match="not a stream"):
        talker.first_token_s(post("/health", {}))


def figures(with_nginx: bool) -> OverheadFigures:
    """Direct 1 ms, nginx 2 ms, slotwise 6 ms; the template 10 ms; 100, 90 and 85 events/s."""
    arms = {DIRECT: (0.001, 100.0), NGINX: (0.002, 90.0), OURS: (0.006, 85.0)}
    if not with_nginx:
        del arms[NGINX]
    times = {arm: [ttft_s] * 9 for arm, (ttft_s, _) in arms.items()}
    runs = {arm: [(per_s, 1e-5)] * 3 for arm, (_, per_s) in arms.items()}
    return OverheadFigures(
        ttft_s={SHORT: times, LONG: times},
        cpu_s={length: dict.fromkeys(arms, 0.001) for length in (SHORT, LONG)},
        apply_s={length: [0.010] * 9 for length in (SHORT, LONG)},
        tokens={SHORT: (180, 220), LONG: (75_000, 125_000)},
        flows={1: runs, 16: runs},
    )


def test_the_targets_are_judged_by_ratios_of_one_run() -> None:
    held = [(row["ratio"], row["held"]) for row in verdicts(figures(with_nginx=True))]
    assert held == [("5.00", "yes"), ("0.50", "yes"), ("0.85", "yes")]
    worse = figures(with_nginx=True)
    worse.ttft_s[SHORT] = {**worse.ttft_s[SHORT], OURS: [0.0101] * 9}
    assert [row["held"] for row in verdicts(worse)] == ["NO", "yes", "yes"]


def test_without_nginx_the_rest_is_told() -> None:
    told = report(figures(with_nginx=False), [Target(DIRECT, "http://x")], load=0.0)
    assert "nginx is not installed" in told
    assert [row["ratio"] for row in verdicts(figures(with_nginx=False))] == ["0.50", "0.85"]


def test_nginx_passes_a_stream_on_as_it_is() -> None:
    if not overhead.has_nginx():
        pytest.skip("nginx is not installed")
    with fake() as url, overhead.nginx(url) as arm:
        assert streams(arm.url, [asked(50, pace_us=1000)] * 3).whole == 3 * 52
        assert arm.cpu_s() >= 0
        assert len(arm.processes) == 1, "a worker would outlive a master that is killed"


@pytest.mark.slow
def test_the_whole_benchmark_runs_with_slotwise_at_work() -> None:
    size = overhead.RunSize(4, 3, long_tokens=2000, rounds=1, events=2500, streams=(1, 2))
    told = overhead.run(size, [])
    assert "| slotwise |" in told
    assert "| one real /apply-template |" in told
    assert told.count("| 2 | slotwise |") == 1
