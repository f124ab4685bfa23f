"""Nobody starves: every wait has its bound, under any load, and a key that floods waits itself."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwise.bench.sim import cost_model, waits
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.waits import Longest, Talk, bounds, single, watched
from slotwise.policies.params import Params
from slotwise.policies.types import SIDE_JOB

EVIDENCE = cost_model.load("evidence")
TIGHT = Params(
    max_wait_s=8,
    cold_tokens=1000,
    request_timeout_s=60,
    max_waiting=24,
    cost=EVIDENCE.as_policy(),
)


def beyond(found: Longest, params: Params) -> dict[str, float]:
    """The waits that went past their bounds."""
    return {bound.name: found.seconds(bound) for bound in bounds(params) if not found.kept(bound)}


# ---------------------------------------------------------------- any load


keys = st.sampled_from(["ann", "ben", "cleo"])
starts = st.floats(0, 20)
talks = st.tuples(
    *(keys, starts, st.integers(1, 5), st.integers(500, 20_000), st.integers(1, 900)),
    *(st.floats(0, 12), st.booleans()),
)
calls = st.tuples(keys, starts, st.integers(50, 6000), st.integers(1, 900), st.booleans())
Spoken = tuple[str, float, int, int, int, float, bool]
Called = tuple[str, float, int, int, bool]


def conversation(spoken: Spoken) -> list[list[Ask]]:
    """Turns one after the other, and perhaps a copy of the first beside it."""
    key, start, turns, n, output, pause_s, twice = spoken
    one = Talk(key, n + turns * 1200 + output)
    asks = [one.ask(n + 1200 * k, output, start if not k else pause_s) for k in range(turns)]
    return [asks, [one.ask(n, output, start + 1)]] if twice else [asks]


def call(called: Called) -> list[Ask]:
    key, start, n, output, is_side = called
    return single(key, n, output, start, kind=SIDE_JOB if is_side else "chat", stream=n % 2 == 0)


@pytest.mark.slow
@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    st.lists(talks, max_size=6),
    st.lists(calls, max_size=14),
    st.integers(1, 3),
    st.sampled_from([0, 1, 3]),  # 20,000 tokens take 10 s
)
def test_no_wait_goes_past_its_bound(
    spoken: list[Spoken], called: list[Called], slots: int, reads: int
) -> None:
    sessions = [session for one in spoken for session in conversation(one)]
    sessions += [call(one) for one in called]
    params = replace(TIGHT, long_reads=reads)
    found, run = watched(Workload(sessions), slots, params, EVIDENCE)
    assert beyond(found, params) == {}
    assert all(served.finished >= 0 for served in run.served)


def test_a_wait_past_its_bound_would_be_seen() -> None:
    """The same measure against bounds that were not kept."""
    scene = next(s for s in waits.corners() if s.name == "behind later ones, out of turn")
    loose = replace(scene, params=replace(scene.params, max_wait_s=900))
    cost = cost_model.load(scene.cost)
    given = replace(scene.params, cost=cost.as_policy())
    found, _ = watched(loose.workload, loose.slots, loose.params, cost, bounded_by=given)
    assert list(beyond(found, given)) == ["behind later ones, out of turn"]


@pytest.mark.parametrize(("reads", "least_s", "most_s"), [(0, 285, 301), (6, 660, 760)])
def test_a_prompt_that_takes_minutes_may_wait_longer(
    reads: int, least_s: float, most_s: float
) -> None:
    """Three agents return at once, again and again; a newcomer's 100,000 tokens take 656 s. It
    waits no longer than for what was before it when it came, some 90 s, and its own read."""
    cost = cost_model.load("gb10")
    agents = [waits.talk(f"agent{k}", 80, 4000, 300, 200, 0.1) for k in range(3)]
    new = single("new", 100_000, 100, 60.0)
    params = Params(keep=False, max_running=1, long_reads=reads, cost=cost.as_policy())
    found, _ = watched(Workload([*agents, new]), 4, params, cost)
    overtaken = next(b for b in bounds(params) if b.name == "behind later ones, out of turn")
    assert least_s <= found.seconds(overtaken) <= most_s
    assert found.kept(overtaken)


# ---------------------------------------------------------------- soak and corners


@pytest.mark.slow
def test_soak_and_corners_keep_every_bound_and_reach_them() -> None:
    rows, clients = waits.measure()
    assert {row["wait"]: row["within"] for row in rows} == {b.name: "yes" for b in bounds(Params())}
    for row in rows:
        assert row["corner, longest s"] >= 0.95 * row["bound s"], row["wait"]
    longest_s = {one["key"]: one["longest s"] for one in clients}
    assert longest_s["steady"] < 60 < longest_s["flood"]


@pytest.mark.parametrize("fair", [True, False])
def test_a_key_that_floods_makes_its_own_requests_wait(fair: bool) -> None:
    sessions = [single("flood", 4000, 200, 10.0) for _ in range(30)]
    sessions += [single("steady", 2100, 10, 3.0 * k) for k in range(60)]
    params = replace(Params(), cost=EVIDENCE.as_policy())
    params = replace(params, order=fair)
    _, run = watched(Workload(sessions), 4, params, EVIDENCE)
    waited = [s.begun - s.arrived for s in run.served if s.ask.client == "steady"]
    assert (mean(waited) < 10) is fair
