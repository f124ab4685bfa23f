"""What stands where in a prompt for filling in, and which bodies are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.prefix import Tokens, pack
from slotwise.proxy.chat.request import Kind, prepare
from slotwise.proxy.errors import ProxyError
from slotwise.proxy.tokens.fim import FimTokens, InfillFlags, Pieces, compose, files_content
from slotwise.proxy.tokens.vocabulary import TokenType, Vocabulary

FIM = FimTokens(pre=901, suf=902, mid=903, rep=904, sep=905)
FLAGS = InfillFlags(n_batch=16)
BOS = pack([900]).packed


def composed(
    prefix: Iterable[int] = (1, 2),
    suffix: Iterable[int] = (3, 4),
    prompt: Iterable[int] = (),
    files: Iterable[int] = (),
    flags: InfillFlags = FLAGS,
    window: int | None = 100,
) -> list[int]:
    pieces = Pieces(*(pack(part).packed for part in (prefix, suffix, prompt, files)))
    return Tokens(compose(FIM, flags, window, BOS, pieces)).ids()


def test_the_parts_stand_in_the_engines_order() -> None:
    assert composed(prompt=[5], files=[6, 7]) == [6, 7, 900, 901, 1, 2, 5, 902, 3, 903]


def test_the_suffix_comes_first_where_the_engine_was_told_so() -> None:
    flags = replace(FLAGS, spm_infill=True)
    assert composed(prompt=[5], flags=flags) == [900, 902, 3, 901, 1, 2, 5, 903]


def test_the_end_of_the_prefix_and_the_begin_of_the_suffix_are_kept() -> None:
    ids = composed(prefix=range(100, 130), suffix=range(200, 230))
    assert ids == [900, 901, *range(118, 130), 902, 200, 201, 903]
    assert composed(suffix=[8], prompt=range(10, 30))[-2:] == [902, 903]


@pytest.mark.parametrize(
    ("window", "n_predict", "left"),
    [(100, -1, 86), (100, 10, 64), (20, 10, 0), (10, -1, 0), (None, -1, 90)],
)
def test_of_the_files_so_much_is_kept_as_the_window_leaves(
    window: int | None, n_predict: int, left: int
) -> None:
    flags = replace(FLAGS, n_predict=n_predict)
    ids = composed(files=range(500, 590), flags=flags, window=window)
    assert ids[: ids.index(900)] == list(range(590 - left, 590))


def test_files_stand_under_their_names_where_the_model_has_tokens_for_it() -> None:
    files = [{"text": "a", "filename": "x.py"}, {"text": "b"}]
    content = files_content(FIM, files)
    assert content == [904, "myproject\n", 905, "x.py\n", "a", 905, "tmp\n", "b", 905, "filename\n"]
    border = "\n\n--- snippet ---\n\n"
    assert files_content(FimTokens(), files) == [border, "a", border, "b"]
    assert files_content(FimTokens(), []) == []


def test_tokens_are_those_that_the_file_names_else_those_with_the_usual_texts() -> None:
    tokens = ["a", "<|fim_prefix|>", "<PRE>", "<fim_suffix>", "<X>"]
    types = [TokenType.NORMAL] + [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED]
    vocabulary = Vocabulary("gpt2", "qwen2", tokens, types, (), (), fim={"mid": 4, "suf": 0})
    assert vocabulary.fim_tokens() == FimTokens(pre=1, suf=0, mid=4)
    assert set(vocabulary.controls()) == set(tokens[1:4])
    assert set(vocabulary.specials()) == set(tokens[1:])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"input_prefix": None}, "input_prefix: expected a string or a list"),
        ({"input_suffix": 5}, "input_suffix: expected a string or a list"),
        ({"input_suffix": ["a", -1]}, "input_suffix: expected a string or a list"),
        ({"prompt": [1]}, "prompt: expected a string, got list"),
        ({"input_extra": "x"}, "input_extra: expected a list, got str"),
        ({"input_extra": [{"text": "a"}, {"filename": "b"}]}, "input_extra[1]: expected"),
        ({"input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0]: expected"),
    ],
)
def test_other_bodies_are_a_clear_400(change: dict[str, Any], says: str) -> None:
    body = json.dumps({"input_prefix": "a", "input_suffix": "b", **change}).encode()
    with pytest.raises(ProxyError) as caught:
        asyncio.run(prepare(Kind.INFILL, "/infill", body, {"main": "main"}))
    assert caught.value.status == 400
    assert says in caught.value.message
