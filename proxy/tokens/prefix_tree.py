"""Texts by how they begin: which of them is the longest that another text begins with.

Hundreds of prompts are kept that have one client's system text in common. Asking each of them
whether a new prompt begins with it touches all of their texts; here what is common is compared
once, and then only what follows the place where they part.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class _Node(Generic[T]):
    """The end of what all texts below have in common; ``label``: what it adds to its parent's."""

    __slots__ = ("below", "label", "parent", "value")

    def __init__(self, label: str, parent: _Node[T] | None) -> None:
        self.label = label
        self.parent = parent
        self.below: dict[str, _Node[T]] = {}  # by the first character of their labels
        self.value: T | None = None  # of the text that ends here


class PrefixTree(Generic[T]):
    """Values (hashable, each of one text) by texts."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node("", None)
        self._nodes: dict[T, _Node[T]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def longest(self, text: str) -> T | None:
        """The value of the longest text with which this one begins. None: there is none."""
        node, at = self._root, 0
        found = node.value
        while at < len(text):
            below = node.below.get(text[at])
            if below is None or not text.startswith(below.label, at):
                break
            node, at = below, at + len(below.label)
            if node.value is not None:
                found = node.value
        return found

    def put(self, text: str, value: T) -> T | None:
        """Returns the value that this text had before, which is gone."""
        node = self._node_of(text)
        before = node.value
        if before is not None:
            del self._nodes[before]
        node.value = value
        self._nodes[value] = node
        return before

    def drop(self, value: T) -> None:
        """Forget a value and its text; one that is not there is no fault."""
        node = self._nodes.pop(value, None)
        if node is None:
            return
        node.value = None
        parent = node.parent
        if not node.below and parent is not None:
            del parent.below[node.label[0]]
            node = parent
        _join(node)

    def _node_of(self, text: str) -> _Node[T]:
        node, at = self._root, 0
        while at < len(text):
            below = node.below.get(text[at])
            if below is None:
                below = node.below[text[at]] = _Node(text[at:], node)
            elif not text.startswith(below.label, at):
                below = _part(below, _common(below.label, text, at))
            node, at = below, at + len(below.label)
        return node


def _part(node: _Node[T], chars: int) -> _Node[T]:
    """A node between this one and its parent, with the first ``chars`` of its label."""
    parent = node.parent
    assert parent is not None
    upper: _Node[T] = _Node(node.label[:chars], parent)
    parent.below[upper.label[0]] = upper
    node.label, node.parent = node.label[chars:], upper
    upper.below[node.label[0]] = node
    return upper


def _join(node: _Node[T]) -> None:
    """A node that ends no text and parts none goes up in the one below it."""
    parent = node.parent
    if parent is None or node.value is not None or len(node.below) != 1:
        return
    (below,) = node.below.values()
    below.label, below.parent = node.label + below.label, parent
    parent.below[below.label[0]] = below


def _common(label: str, text: str, at: int) -> int:
    """How many characters they share, at least the first: halves are compared in C."""
    low, high = 1, min(len(label), len(text) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(label[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low
