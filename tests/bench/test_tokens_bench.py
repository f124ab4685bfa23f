"""The benchmark of tokens compares with the engine, and asks it for few whole prompts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.bench.cost.tokens_bench import BenchError, Turns
from slotwise.policies.prefix import pack


def play(compared: bool, theirs: list[int], rendered: str = "text") -> list[str]:
    """One turn whose ids are 1, 2, 3 here; what the engine was asked."""
    asked: list[str] = []

    async def answer(what: str, result: Any) -> Any:
        asked.append(what)
        return result

    async def own(result: Any) -> Any:
        return result

    engine: Any = SimpleNamespace(
        apply_template=lambda body: answer("template", rendered),
        tokenize=lambda text: answer("tokenize", theirs),
    )
    known: Any = SimpleNamespace(
        prompts=SimpleNamespace(encode=lambda text: own(SimpleNamespace(tokens=pack([1, 2, 3])))),
        text=lambda engine, body, plan: own("text"),
        plan=lambda body: None,
    )
    asyncio.run(Turns([1.0]).one(engine, known, {}, compared))
    return asked


def test_the_ids_of_a_whole_prompt_are_asked_for_only_where_they_are_compared() -> None:
    """An engine may take seconds for them: forty turns took longer than anybody waits."""
    assert play(compared=False, theirs=[9]) == ["template"]
    assert play(compared=True, theirs=[1, 2, 3]) == ["template", "tokenize"]


@pytest.mark.parametrize(
    ("compared", "theirs", "rendered"), [(True, [1, 2], "text"), (False, [1, 2, 3], "other")]
)
def test_a_difference_ends_it(compared: bool, theirs: list[int], rendered: str) -> None:
    with pytest.raises(BenchError, match="differs"):
        play(compared, theirs, rendered)
