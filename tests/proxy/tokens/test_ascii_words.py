"""ASCII texts by their words: the same ids as the library's, whatever the expression."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.proxy.tokens import ascii_words
from slotwise.proxy.tokens.ascii_words import AsciiWords, ascii_form
from slotwise.proxy.tokens.local_encoder import SPLITS, LocalEncoder, from_vocabulary
from slotwise.proxy.tokens.vocabulary import Vocabulary

# One family for each expression that stands alone.
ONE_EXPRESSION = sorted({e: pre for pre, (e, _) in SPLITS.items() if len(e) == 1}.values())
PIECES = [
    *("a", "B", "bc", "Bc", "'s", "'LL", "'", " ", "  ", "\n", "\r\n", "\t", "\v", "\x1c", "\0"),
    *("\x7f", "1", "23", ".", "-", "/", "{", "_", "!", "$", "~", "^", "é", "☃", "<x>"),
]


def byte_level(pre: str) -> LocalEncoder:
    """Every byte a token, some merges, and one special token."""
    letters = [*map(chr, range(33, 127)), *(chr(256 + n) for n in range(68))]
    letters += [chr(n) for n in (*range(161, 173), *range(174, 256))]
    merges = ["b c", "B c", "\u0120 a", "\u0120 \u0120", "\u010a \u010a", "2 3", "' s", "a a"]
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges), "<x>"]
    kinds = [1] * (len(tokens) - 1) + [3]
    return from_vocabulary(Vocabulary("gpt2", pre, tokens, kinds, [], merges))


@pytest.mark.parametrize("pre", ONE_EXPRESSION)
def test_words_give_the_librarys_ids(pre: str) -> None:
    library, words = byte_level(pre), byte_level(pre)
    words.learn_words()

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=4))
    def same(segments: list[str]) -> None:
        assert words.encode(segments) == library.encode(segments)

    same()


def test_what_is_no_ascii_or_lies_between_words_is_left_to_the_library() -> None:
    words = AsciiWords(r"[a-z]+| ", lambda word: [len(word)])
    assert words.encode("ab abc") == b"\2\0\0\0\1\0\0\0\3\0\0\0"
    assert words.encode("ab.c") is None
    assert words.encode("äb") is None


def test_a_word_is_tokenized_once_and_the_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ascii_words, "_MOST_WORDS", 3)
    asked: list[str] = []

    def tokenize(word: str) -> list[int]:
        asked.append(word)
        return [1]

    words = AsciiWords(r"[a-z]+| ", tokenize)
    words.encode("a b a")
    words.encode("b a c")
    assert sorted(asked) == ["a", "b", "c", "\u0120"]
    words.encode("d")
    words.encode("a")
    assert asked[-2:] == ["d", "a"]


def test_an_expression_takes_its_ascii_form() -> None:
    given_form = r"((?=[\p{L}])([^a-z]))+|[^\s\p{L}\p{M}\(]?\p{N}{1,3}(?!\S)"
    expected = r"(?:(?=[A-Za-z])(?:[^a-z]))+|[^\sA-Za-z\(]?[0-9]{1,3}(?!\S)"
    assert ascii_form(given_form) == expected
