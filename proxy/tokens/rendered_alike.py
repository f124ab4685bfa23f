"""Which kinds of requests were seen to render here as in the engine, told by their shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import orjson

_KEPT_SHAPES = 2000


class Shapes:
    """Which shapes of requests were seen to render alike here and in the engine; bounded."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, bool] = OrderedDict()

    def proven(self, shape: bytes) -> bool | None:
        """None: not compared yet."""
        equal = self._seen.get(shape)
        if equal is not None:
            self._seen.move_to_end(shape)
        return equal

    def put(self, shape: bytes, equal: bool) -> None:
        self._seen[shape] = equal
        while len(self._seen) > _KEPT_SHAPES:
            self._seen.popitem(last=False)


def shape_of(fields: Mapping[str, Any]) -> bytes:
    """All of a request that may take another path through a template, but not its texts.

    Tools and options count by value: they stay the same over a conversation.
    """
    messages = fields["messages"]
    kinds = set(map(_kind, messages))
    roles = ["", *(message["role"] for message in messages), ""]
    follows = set(pairwise(roles))
    others = {name: value for name, value in fields.items() if name != "messages"}
    key = (sorted(kinds), sorted(follows), orjson.dumps(others))
    return blake2b(repr(key).encode(), digest_size=16).digest()


def _kind(message: Mapping[str, Any]) -> tuple[object, ...]:
    content = message.get("content")
    calls = message.get("tool_calls")
    return (
        message["role"],
        type(content).__name__,
        bool(content),
        isinstance(content, list) and len(content) > 1,
        bool(message.get("reasoning_content")),
        bool(message.get("name")),
        bool(message.get("tool_call_id")),
        min(len(calls), 2) if isinstance(calls, list) else 0,
    )
