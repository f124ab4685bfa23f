"""What used to be lost to the bare engine, on the real one, with the bare engine beside."""

from __future__ import annotations

import pytest

from slotwise.bench.floor.engine import EngineCell, measure, served
from slotwise.bench.floor.shapes import Lane, Turn, body, message
from slotwise.bench.trace.workload import text

FOUR = EngineCell(4, "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", ["preambles", "preambles_streamed", "satellites", "agent_with_classifiers"]
)
def test_what_the_bare_engine_keeps_is_kept(shape: str) -> None:
    bare, own = (measure(shape, 1, FOUR, arm) for arm in ("llama.cpp", "slotwise"))
    assert bare.reuse > 0.8
    assert own.reuse >= bare.reuse - 0.01


@pytest.mark.slow
def test_a_retry_after_a_whole_answer_was_given_up_comes_at_once() -> None:
    """The engine would have gone on with it for minutes, beside the other conversation."""
    asked = [message("user", text(3000, "long"))]
    other = [message("user", text(60, "other"))]
    retry: Lane = [
        Turn("r", body(asked, False), 30_000, gives_up_s=1.0),
        Turn("r", body(asked, True), 5, pause_s=0.2),
    ]
    beside: Lane = [Turn("o", body(other, True), 4000, pause_s=0.5)]
    own = served([retry, beside], FOUR, "slotwise")
    # The longest of the three is the second's wait until its client gave up.
    assert own.longest < 10
