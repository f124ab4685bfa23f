"""Calls as token rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from slotwise.bench.trace.rows import Renderer, Row
from slotwise.bench.trace.trace import Call, Message
from slotwise.bench.trace.workload import conversation
from slotwise.policies.prefix import lcp


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """Every byte a token, beside ChatML's special ones: enough to count exactly."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken(s) for s in ("<|im_start|>", "<|im_end|>")])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return Renderer(path)


def row(renderer: Renderer, *messages: Message, answers: bool = False, answer: str = "") -> Row:
    call = Call("s", 0, list(messages), None, 8, answer, None, None)
    return renderer.rows([call], answers)[0]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_the_first_user_turn_ends_behind_its_closing_tokens(renderer: Renderer) -> None:
    system = {"role": "system", "content": "ab"}
    found = row(renderer, system, user("c"), {"role": "assistant", "content": "d"}, user("e"))
    first = row(renderer, system, user("c"))
    opening = len("\nassistant") + 1 + 1  # the generation prompt: a special token, word, newline
    assert found.first_user_end == len(first.prompt) - (opening - 1)
    assert lcp(found.prompt, first.prompt) == len(first.prompt)
    assert (first.turns, found.turns) == (1, 2)


def test_the_next_turn_extends_prompt_and_answer(renderer: Renderer) -> None:
    calls = list(conversation("s", 3, words_per_turn=5))
    rows = renderer.rows(calls, answers=True)
    for earlier, later in pairwise(rows):
        assert lcp(later.prompt, earlier.full) == len(earlier.full) > len(earlier.prompt)


def test_without_answers_only_the_prompt_is_held(renderer: Renderer) -> None:
    found = row(renderer, user("hello"), answer="world")
    assert found.full == found.prompt
    held = row(renderer, user("hello"), answer="world", answers=True)
    assert len(held.full) == len(held.prompt) + len("world") - 1  # its last token is not in the KV


def test_tools_stand_before_everything_else(renderer: Renderer) -> None:
    plain = Call("s", 0, [user("x")], None, 8, "", None, None)
    tooled = Call("s", 0, [user("x")], [{"name": "look"}], 8, "", None, None)
    one, two = renderer.rows([plain, tooled], answers=False)
    assert lcp(one.prompt, two.prompt) < 3
    assert len(two.prompt) > len(one.prompt)
