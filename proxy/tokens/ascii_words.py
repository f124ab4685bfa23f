"""Plain ASCII text by its words, most of which were met before: for short texts, at once.

The library takes most of its time to cut a text into words, since it keeps track of where each
character came from. For ASCII the standard library cuts alike, in a third of that; and what a word
becomes is remembered. Anything else is left to the library.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence

_MOST_WORDS = 20_000  # some 3 MB; then all are met anew
_CLASSES = {
    "L": "A-Za-z",
    "N": "0-9",
    "M": "",  # no marks in ASCII
    "P": r"!\"#%&'()*,\-./:;?@\[\\\]_{}",
    "S": r"$+<=>\^`|~",
}
_PARTS = re.compile(r"\\p\{(\w)\}|\\.|\(\??|.", re.DOTALL)
# How byte-level vocabularies write what cannot be seen (bytes 0 to 32, and 127).
_BYTES = {**{byte: 256 + byte for byte in range(33)}, 127: 289}


def ascii_form(expression: str) -> str:
    """The expression as it is for ASCII, in the words of ``re``, without groups that capture."""
    inside = False
    form = ""
    for part in _PARTS.finditer(expression):
        found = part.group()
        if part[1] is not None:
            found = _CLASSES[part[1]] if inside else f"[{_CLASSES[part[1]]}]"
        elif found == "(" and not inside:
            found = "(?:"
        elif found in ("[", "]"):
            inside = found == "["
        form += found
    return form


class AsciiWords:
    """``expression``: cuts a text into words; ``tokenize``: ids of a word in byte-level letters."""

    def __init__(self, expression: str, tokenize: Callable[[str], Sequence[int]]) -> None:
        self._words = re.compile(ascii_form(expression), re.ASCII).findall
        self._tokenize = tokenize
        self._known: dict[str, bytes] = {}

    def encode(self, text: str) -> bytes | None:
        """Packed ids; None: the library has to do it."""
        if not text.isascii():
            return None
        words = self._words(text)
        if sum(map(len, words)) != len(text):  # the expression leaves something between its words
            return None
        try:
            return b"".join(map(self._known.__getitem__, words))
        except KeyError:
            self._learn(words)
            return b"".join(map(self._known.__getitem__, words))

    def _learn(self, words: Sequence[str]) -> None:
        if len(self._known) > _MOST_WORDS:
            self._known.clear()
        for word in set(words).difference(self._known):
            self._known[word] = array("I", self._tokenize(word.translate(_BYTES))).tobytes()
