"""Texts cut at special tokens: as the engine partitions them, kept within bounds."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.policies.prefix import Tokens, pack
from slotwise.proxy.tokens.prompt_encoder import (
    KnownPrompts,
    SegmentCache,
    TokenizedText,
    content_key,
)
from slotwise.proxy.tokens.segments import Piece, Segmenter

CHAT = {"<|im_start|>": 1, "<|im_end|>": 2, "<|endoftext|>": 0}
RUNS = {"\n" * n: 10 + n for n in range(1, 6)}


def partition(text: str, specials: dict[str, int]) -> list[Piece]:
    """llama.cpp's ``tokenizer_st_partition``: one special token after the other, longest first."""
    parts: list[Piece] = [text] if text else []
    for special in sorted(specials, key=lambda s: -len(s.encode())):
        done: list[Piece] = []
        for part in parts:
            if isinstance(part, int):
                done.append(part)
                continue
            while (at := part.find(special)) >= 0:
                if at:
                    done.append(part[:at])
                done.append(specials[special])
                part = part[at + len(special) :]
            if part:
                done.append(part)
        parts = done
    return parts


def cut(segmenter: Segmenter, text: str, start: int = 0) -> list[Piece]:
    """All the way: pieces, and what is tangled inside them."""
    parts: list[Piece] = []
    for piece, _ in segmenter.pieces(text, start):
        parts += [piece] if isinstance(piece, int) else segmenter.fragments(piece)
    return parts


def joined(parts: list[Piece]) -> list[Piece]:
    """Texts that stand side by side put together: the engine never cuts between two of them."""
    whole: list[Piece] = []
    for part in parts:
        if whole and isinstance(part, str) and isinstance(whole[-1], str):
            whole[-1] += part
        else:
            whole.append(part)
    return whole


names = st.text("ab<>", min_size=1, max_size=4)


@given(st.sets(names, min_size=1, max_size=6), st.text("ab<> \n", max_size=40))
def test_a_text_is_cut_as_the_engine_partitions_it(texts: set[str], text: str) -> None:
    specials = {special: i for i, special in enumerate(sorted(texts))}
    segmenter = Segmenter(specials)
    if segmenter.certain:
        assert cut(segmenter, text) == partition(text, specials)


@given(st.lists(st.sampled_from([*CHAT, *RUNS, "a", " ", "<|im_", "start|>", "\r"]), max_size=40))
def test_chat_tokens_and_runs_of_newlines_are_cut_as_the_engine_does(parts: list[str]) -> None:
    text = "".join(parts)
    assert cut(Segmenter({**CHAT, **RUNS}), text) == partition(text, {**CHAT, **RUNS})


@given(
    st.sets(st.tuples(st.sampled_from(" \n.*"), st.integers(1, 6)), min_size=1),
    st.lists(st.tuples(st.sampled_from(" \n.*a"), st.integers(1, 15)), max_size=9),
)
def test_runs_of_any_lengths_are_cut_as_the_engine_does(
    runs: set[tuple[str, int]], parts: list[tuple[str, int]]
) -> None:
    specials = {char * n: i for i, (char, n) in enumerate(sorted(runs))}
    text = "".join(char * n for char, n in parts)
    segmenter = Segmenter(specials)
    assert segmenter.certain
    assert cut(segmenter, text) == partition(text, specials)


@given(st.text("a\n", max_size=60), st.integers(0, 3), st.text("a\n", max_size=9))
def test_a_long_text_is_also_cut_behind_runs_and_a_longer_one_keeps_those_cuts(
    text: str, long: int, more: str
) -> None:
    text = ("a" * 2047 + text) * long
    segmenter = Segmenter({**CHAT, **RUNS})
    assert cut(segmenter, text) == partition(text, {**CHAT, **RUNS})
    ends = [end for _, end in segmenter.pieces(text)][:-1]
    assert ends == [end for _, end in segmenter.pieces(text + more)][: len(ends)]


def test_a_long_text_is_left_whole_where_newlines_stand_in_other_tokens_too() -> None:
    assert len(list(Segmenter({**RUNS, "a\n": 9}).pieces("ab\n" * 3000))) == 1
    assert len(list(Segmenter({**RUNS, "ab": 9}).pieces("a\n" * 3000))) > 1


@pytest.mark.parametrize(
    ("specials", "tangled"),
    [
        (["<a>", "<b>"], []),
        (["<a>", "<ab>"], []),
        (["<a>", "<a>x"], ["<a>", "<a>x"]),
        (["ab", "bc", "<x>"], ["ab", "bc"]),
        (["\n", "\n\n"], ["\n", "\n\n"]),
        (["aba"], ["aba"]),
        (["<a>", ">"], ["<a>", ">"]),
    ],
)
def test_only_tokens_that_never_overlap_are_clean(specials: list[str], tangled: list[str]) -> None:
    segmenter = Segmenter({special: i for i, special in enumerate(specials)})
    assert sorted(text for text, _ in segmenter.tangled) == sorted(tangled)
    assert sorted(segmenter.clean) == sorted(set(specials) - set(tangled))


def test_overlapping_tokens_of_equal_length_leave_the_order_uncertain() -> None:
    assert not Segmenter({"ab": 1, "bc": 2}).certain
    assert Segmenter({"\n": 1, "\n\n": 2, "\t\t": 3}).certain


def test_tokens_are_found_across_the_windows_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.proxy.tokens.segments._WINDOW_CHARS", 7)
    text = "ab<|im_start|>c<|im_end|><|im_end|>" * 9
    assert cut(Segmenter(CHAT), text) == partition(text, CHAT)


def test_thousands_of_special_tokens_make_one_quick_search() -> None:
    specials = {f"<unused{i}>": i for i in range(6000)}
    segmenter = Segmenter(specials)
    assert cut(segmenter, "a<unused12>b<unused1234><unused9999>") == [
        "a",
        12,
        "b",
        1234,
        "<unused9999>",
    ]


def test_segments_are_kept_within_their_bytes_those_used_last() -> None:
    cache = SegmentCache(max_bytes=1000)
    for i in range(20):
        cache.put(bytes([i]), bytes(50))
        cache.get(b"\0")
        assert cache.size_bytes <= 1000
    assert (cache.get(b"\0"), cache.get(b"\1"), cache.get(b"\x13")) == (bytes(50), None, bytes(50))
    cache.put(b"huge", bytes(5000))
    assert (cache.get(b"huge"), len(cache)) == (None, 5)
    cache.clear()
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_the_same_text_of_two_tokenizers_is_kept_twice() -> None:
    assert content_key(b"a", "text") != content_key(b"b", "text")
    assert content_key(b"a", "\ud800") != content_key(b"a", "\udfff")


def tokenized(text: str, segmenter: Segmenter) -> TokenizedText:
    pieces = list(segmenter.pieces(text))
    ends = [0, *(end for _, end in pieces)]
    special = [i for i, (piece, _) in enumerate(pieces, start=1) if isinstance(piece, int)]
    return TokenizedText(text, ends, ends, special, pack(range(len(text))))


def test_a_prompt_goes_on_from_the_longest_known_one_and_takes_its_place() -> None:
    known_prompts, segmenter = KnownPrompts(), Segmenter(CHAT)
    texts = ["<|im_start|>a<|im_end|>b", "<|im_start|>a<|im_end|>bc<|im_end|>d", "<|im_start|>x"]
    for text in texts:
        found = known_prompts.longest(b"", text)
        known_prompts.put(b"", tokenized(text, segmenter), found[0] if found else None)
    assert len(known_prompts) == 2  # the second began with the head of the first
    found = known_prompts.longest(b"", texts[2] + "y")
    assert found is not None
    assert len(found[1].head) == len("<|im_start|>")
    assert known_prompts.longest(b"other", texts[2]) is None
    assert known_prompts.longest(b"", "zzz") is None


def test_the_longest_known_prompt_is_found_among_all_that_share_begins() -> None:
    rng, known_prompts, heads = random.Random(1), KnownPrompts(), set[str]()
    for _ in range(200):
        # Few characters, so that prompts repeat, share begins and end inside each other.
        text = "".join(
            rng.choice("aé😀") * rng.choice((1, 3000)) for _ in range(rng.randrange(1, 6))
        )
        tokens = Tokens(b"")
        known_prompts.put(b"", TokenizedText(text, [0, len(text)], [0, 0], [1], tokens), None)
        heads.add(text)
        wanted = "".join(
            rng.choice("aé😀") * rng.choice((1, 3000)) for _ in range(rng.randrange(8))
        )
        found = known_prompts.longest(b"", wanted)
        longest = max((len(head) for head in heads if wanted.startswith(head)), default=None)
        assert (len(found[1].head) if found else None) == longest
    assert len(known_prompts) == len(heads)


def test_prompts_are_kept_within_their_bytes() -> None:
    known_prompts, segmenter = KnownPrompts(max_bytes=20_000), Segmenter(CHAT)
    for i in range(50):
        known_prompts.put(b"", tokenized(f"{i}" * 500 + "<|im_end|>", segmenter), None)
        assert known_prompts.size_bytes <= 20_000
    assert 0 < len(known_prompts) < 50
    known_prompts.put(b"", tokenized("no special token", segmenter), None)
    known_prompts.clear()
    assert (len(known_prompts), known_prompts.size_bytes) == (0, 0)


def test_tokens_that_go_on_keep_the_digests_of_what_was_known() -> None:
    lengths = (0, 255, 256, 257, 1000)
    for short, long in pairwise(lengths):
        known = pack(range(short))
        assert known.grown(short, pack(range(short, long)).packed) == Tokens(
            pack(range(long)).packed
        )
