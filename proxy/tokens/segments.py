"""Where a prompt's text may be cut so that its parts tokenize on their own, and what they gave.

The engine takes the special tokens out of a text before it merges anything, one special token after
the other, the longest text first. A special token whose text can never overlap an occurrence of
another one is found wherever it stands, in any order: at such a *clean* one a text may be cut. The
others (runs of newlines, say) are *tangled*: they stay inside the segments and are taken out there
in the engine's own order. Where every newline is a special token and no other one holds any, a text
may also be cut behind a run of them; that is done where it gets long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_CHUNK_CHARS = 2048  # a segment longer than this is cut behind a run, where there are runs
_WINDOW_CHARS = 2**20  # one search holds the interpreter: a few ms at most

Piece = str | int
"""A text without clean special tokens, or the id of a special token."""


class Segmenter:
    """The special tokens of one vocabulary, sorted by where a text may be cut."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        overlapping = _overlapping(specials)
        self.clean = {text: i for text, i in specials.items() if text not in overlapping}
        self.tangled = sorted(
            ((text, specials[text]) for text in overlapping), key=lambda item: -_size(item[0])
        )
        self.certain = not _order_matters([text for text, _ in self.tangled])
        """Whether the engine's order is known; it is not for overlapping ones of equal length."""
        self._longest = max(map(len, self.clean), default=0)
        self._search = re.compile(_trie(self.clean)) if self.clean else None
        runs = "".join(map(re.escape, _run_characters(specials)))
        self._run = re.compile(f"([{runs}])\\1*") if runs else None
        self._only_runs = _runs_search([text for text, _ in self.tangled])
        self._ids = dict(self.tangled)

    def pieces(self, text: str, start: int = 0) -> Iterator[tuple[Piece, int]]:
        """The text from ``start`` on, cut; each piece with the position just past it."""
        done = start
        for at, end in self._occurrences(text, start):
            if at > done:
                yield from self._chunks(text, done, at)
            yield self.clean[text[at:end]], end
            done = end
        if done < len(text):
            yield from self._chunks(text, done, len(text))

    def found_in(self, text: str) -> bool:
        """Whether any of them stands in a text."""
        if any(special in text for special, _ in self.tangled):
            return True
        return next(self._occurrences(text, 0), None) is not None

    def fragments(self, segment: str) -> list[Piece]:
        """A segment as the engine sees it: tangled special tokens out, in the engine's order."""
        parts: list[Piece] = [segment]
        if self._only_runs is not None:
            return self._runs_out(segment, self._only_runs)
        for special, i in self.tangled:
            if special in segment:
                parts = [new for part in parts for new in _taken_out(part, special, i)]
        return parts

    def _runs_out(self, segment: str, runs: re.Pattern[str]) -> list[Piece]:
        parts: list[Piece] = []
        done = 0
        for match in runs.finditer(segment):
            begin, end = match.span()
            if begin > done:
                parts.append(segment[done:begin])
            parts.append(self._ids[match.group()])
            done = end
        if done < len(segment):
            parts.append(segment[done:])
        return parts

    def _chunks(self, text: str, start: int, end: int) -> Iterator[tuple[Piece, int]]:
        """A text without clean special tokens, in parts of some length.

        Each part depends only on what is before it, so that a prompt that goes on keeps its parts.
        """
        while self._run is not None and end - start > _CHUNK_CHARS:
            run = self._run.search(text, start + _CHUNK_CHARS, end)
            if run is None or run.end() == end:  # more of the run may follow one day
                break
            yield text[start : run.end()], run.end()
            start = run.end()
        yield text[start:end], end

    def _occurrences(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        if self._search is None:
            return
        limit = len(text)
        while start < limit:
            window = min(limit, start + _WINDOW_CHARS)
            # One that begins in this window may end in the next.
            for match in self._search.finditer(text, start, min(limit, window + self._longest)):
                if match.start() >= window:
                    break
                start = match.end()
                yield match.span()
            start = max(start, window)


def _taken_out(part: Piece, special: str, i: int) -> list[Piece]:
    if not isinstance(part, str):
        return [part]
    found: list[Piece] = []
    for n, rest in enumerate(part.split(special)):
        if n:
            found.append(i)
        if rest:
            found.append(rest)
    return found


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _overlapping(specials: Mapping[str, int]) -> set[str]:
    """Those with an occurrence that some occurrence of another, or their own next, can share."""
    heads: dict[str, set[str]] = {}
    for text in specials:
        for n in range(1, len(text)):
            heads.setdefault(text[:n], set()).add(text)
    found: set[str] = set()
    for text in specials:
        for begin in range(len(text)):
            for end in range(begin + 1, len(text) + 1):
                inside = text[begin:end]
                if inside != text and inside in specials:
                    found |= {text, inside}
            if begin and text[begin:] in heads:
                found |= {text, *heads[text[begin:]]}
    return found


def _run_characters(specials: Mapping[str, int]) -> list[str]:
    """Characters that are special tokens themselves and stand in no others than runs of them."""
    single = {text for text in specials if len(text) == 1}
    spoiled = {char for text in specials if len(set(text)) > 1 for char in text}
    return sorted(single - spoiled)


def _runs_search(texts: Sequence[str]) -> re.Pattern[str] | None:
    """One search for runs of single characters, the longest first; None: others are among them.

    To take the longest out of a run first, then the next, gives what a search from its begin gives.
    """
    lengths: dict[str, list[int]] = {}
    for text in texts:
        if len(set(text)) != 1:
            return None
        lengths.setdefault(text[0], []).append(len(text))
    options: list[str] = []
    for char, known in lengths.items():
        low = high = max(known)
        for length in [*sorted(known, reverse=True)[1:], 0]:
            if length == low - 1 and length:
                low = length
                continue
            options.append(f"{re.escape(char)}{{{low},{high}}}")
            low = high = length
    return re.compile("|".join(options)) if options else None


def _order_matters(texts: list[str]) -> bool:
    """Whether two different ones of equal length overlap: then the engine's order is its sort's."""
    return any(
        _size(a) == _size(b) and a != b and any(a[-n:] == b[:n] for n in range(1, len(b)))
        for a in texts
        for b in texts
    )


def _trie(texts: Mapping[str, int]) -> str:
    """One expression for thousands of texts, in which a search tries one branch per character."""
    root: dict[str, dict] = {}  # type: ignore[type-arg]
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branches(root)


def _branches(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    chain = ""
    while len(node) == 1 and "" not in node:
        (char, node), *_ = node.items()
        chain += re.escape(char)
    if not any(node):
        return chain
    options = [re.escape(char) + _branches(rest) for char, rest in node.items() if char]
    # None of them is part of another, so none ends where another goes on.
    return f"{chain}(?:{'|'.join(options)})"
