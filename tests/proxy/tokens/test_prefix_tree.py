"""A tree of texts finds what asking each of them would find."""

from __future__ import annotations

import random

from slotwise.proxy.tokens.prompt_encoder import PrefixTree


def longest_of(texts: dict[int, str], text: str) -> int | None:
    """By asking each of them."""
    fitting = [number for number, known in texts.items() if text.startswith(known)]
    return max(fitting, key=lambda number: len(texts[number]), default=None)


def test_it_finds_the_longest_begin_among_all_that_were_put_and_not_dropped() -> None:
    rng = random.Random(1)
    tree, texts = PrefixTree[int](), dict[int, str]()
    for number in range(3000):
        # Few characters, so that texts share begins, repeat and end inside each other.
        text = "".join(rng.choice("aé😀") for _ in range(rng.randrange(1, 9)))
        same = next((n for n, known in texts.items() if known == text), None)
        assert tree.put(text, number) == same
        if same is not None:
            del texts[same]
        texts[number] = text
        if len(texts) > 40:
            gone = rng.choice(list(texts))
            tree.drop(gone)
            del texts[gone]
        asked = "".join(rng.choice("aé😀") for _ in range(rng.randrange(12)))
        assert tree.longest(asked) == longest_of(texts, asked)
        assert len(tree) == len(texts)


def test_what_was_dropped_leaves_no_text_behind() -> None:
    tree = PrefixTree[int]()
    for number, text in enumerate(("system", "system, one", "system, two", "other")):
        tree.put(text, number)
    for number in (1, 0, 3, 2, 2):
        tree.drop(number)
    assert len(tree) == 0
    assert not tree._root.below
    assert tree.longest("system, one and more") is None
