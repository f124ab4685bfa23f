"""Prompts that are hard to tokenize alike, by the thousand, the same ones for the same seed.

Recorded conversations where traces are at hand, generated unicode, code, special tokens inside
texts, texts that begin or end with white space or combining marks, and conversations as the chat
templates of well-known models write them.
"""

from __future__ import annotations

import random
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slotwise.bench.trace import trace

TRACES = ("aider_analytics", "cline", "miniswe", "oasst", "opendevin", "sweagent", "tau_airline")
_LONGEST_CHARS = 6000
_TURN_CHARS = 1700  # some 500 tokens of code

# How well-known models write a turn: opening, between role and content, closing.
FORMS = {
    "chatml": ("<|im_start|>{role}\n", "{content}", "<|im_end|>\n"),
    "llama-3": ("<|start_header_id|>{role}<|end_header_id|>\n\n", "{content}", "<|eot_id|>"),
    "gemma": ("<start_of_turn>{role}\n", "{content}", "<end_of_turn>\n"),
    "mistral": ("[INST] ", "{content}", " [/INST]</s>"),
    "deepseek": ("<｜{role}｜>", "{content}", "<｜end▁of▁sentence｜>"),  # noqa: RUF001
    "phi-3": ("<|{role}|>\n", "{content}", "<|end|>\n"),
    "gpt-oss": ("<|start|>{role}<|channel|>final<|message|>", "{content}", "<|return|>"),
}
_ROLES = ("system", "user", "assistant", "user", "assistant", "tool", "user")
_EDGES = ("", " ", "  ", "\n", "\n\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u0301", "\u0308\u0301")
_MORE_EDGES = ("\u200d", "\ufe0f", "\u2028", " \n ", "\n" * 35, " " * 33, "▁", "\u0bcd", "\u0e33")


def prompts(count: int, specials: Sequence[str], seed: int = 1) -> Iterator[tuple[str, str]]:
    """``count`` texts, each with the name of its kind."""
    rng = random.Random(seed)
    code, said, wild = _code(rng), _said(rng), _unicode(rng)
    kinds = {
        "trace": lambda: next(said),
        "unicode": lambda: next(wild),
        "code": lambda: next(code),
        "specials": lambda: _with_specials(rng, specials, rng.choice((code, wild, said))),
        "edges": lambda: _with_edges(rng, rng.choice((code, wild, said))),
        "templates": lambda: _conversation(rng, (code, wild, said)),
    }
    names = list(kinds)
    for n in range(count):
        name = names[n % len(names)]
        yield name, kinds[name]()


def code_text() -> str:
    """Python's own library: some megabytes of code that are at hand everywhere."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "".join(path.read_text("utf-8", "replace") for path in sorted(folder.glob("[a-d]*.py")))


def _code(rng: random.Random) -> Iterator[str]:
    text = code_text()
    while True:
        begin = rng.randrange(len(text) - _LONGEST_CHARS)
        yield text[begin : begin + rng.choice((20, 200, 1000, _LONGEST_CHARS))]


def _said(rng: random.Random) -> Iterator[str]:
    """Contents of recorded messages; code where no traces are at hand."""
    contents: list[str] = []
    for name in TRACES:
        try:
            for call in trace.read(str(trace.find(name))):
                contents += [m["content"] for m in call.messages[-3:] if m.get("content")]
                contents.append(call.completion)
                if len(contents) > 3000 * (TRACES.index(name) + 1):
                    break
        except (trace.TraceError, OSError):
            continue
    texts = sorted({c for c in contents if isinstance(c, str) and c})
    if not texts:
        yield from _code(rng)
    while True:
        yield rng.choice(texts)[:_LONGEST_CHARS]


def _unicode(rng: random.Random) -> Iterator[str]:
    assigned = [
        chr(point)
        for point in range(0x20000)
        if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")
    ]
    while True:
        kind = rng.randrange(3)
        length = rng.choice((1, 5, 40, 300))
        if kind == 0:  # anything beside anything
            yield "".join(rng.choices(assigned, k=length))
        elif kind == 1:  # words of one script, more or less
            at = rng.randrange(len(assigned) - 100)
            yield "".join(rng.choices([*assigned[at : at + 100], " ", " ", "\n", "1"], k=length))
        else:  # letters with marks, joiners and digits between them
            marks = "\u0301\u0308\u200d\ufe0f\u093c\u064b 12\n"
            yield "".join(rng.choice(assigned) + rng.choice(marks) for _ in range(length))


def _with_specials(rng: random.Random, specials: Sequence[str], texts: Iterator[str]) -> str:
    text = next(texts)[:1500]
    for _ in range(rng.randint(1, 6)):
        special = rng.choice(specials)
        if rng.random() < 0.2:
            special = special[: rng.randint(1, len(special))]  # a part of one is text
        at = rng.randint(0, len(text))
        text = text[:at] + special * rng.choice((1, 1, 2)) + text[at:]
    return text


def _with_edges(rng: random.Random, texts: Iterator[str]) -> str:
    edges = (*_EDGES, *_MORE_EDGES)
    return rng.choice(edges) + next(texts)[:1500] + rng.choice(edges)


def _conversation(rng: random.Random, texts: Sequence[Iterator[str]]) -> str:
    opening, middle, closing = FORMS[rng.choice(list(FORMS))]
    turns = [
        opening.format(role=role)
        + middle.format(content=next(rng.choice(texts))[:800])
        + closing.format(role=role)
        for role in _ROLES[: rng.randint(1, len(_ROLES))]
    ]
    return "".join(turns) + opening.format(role="assistant")


def conversation(
    tokens: int, start: int = 0
) -> tuple[list[dict[str, Any]], Callable[[], list[dict[str, Any]]]]:
    """An agent's messages of about so many tokens, and what gives the two of the next turn.

    ``start``: where in the corpus it begins, characters; two that lie apart hold other texts.
    """
    text = code_text()
    place = start

    def some(chars: int) -> str:
        nonlocal place
        place += chars
        return text[(place - chars) % len(text) :][:chars]

    def turn(user: int = _TURN_CHARS - 500, answer: int = 500) -> list[dict[str, Any]]:
        return [
            {"role": "assistant", "content": some(answer)},
            {"role": "user", "content": some(user)},
        ]

    messages = [{"role": "system", "content": some(6000)}, {"role": "user", "content": some(900)}]
    while place - start < tokens * 3.6:
        messages += turn(5000, 700)
    return messages, turn
