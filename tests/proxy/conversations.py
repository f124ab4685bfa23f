"""Conversations put to a table of sessions: what the tests of identity share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise.proxy.chat.sessions import Session, SessionTable
from tests.proxy.client_shapes import Talk, Wire, talk, used


class Proxy:
    """A table, a key and a clock that goes on."""

    def __init__(self, **bounds: Any) -> None:
        self.table = SessionTable(**bounds)
        self.now = 0.0

    def __call__(self, wire: Wire, key: str = "ann", after_s: float = 1.0) -> Session:
        self.now += after_s
        return self.table.identify(wire.headers, wire.body, key, self.now)

    def ids(self, *wires: Wire) -> list[str]:
        return [self(wire).id for wire in wires]


def plain(said: Talk, system: str = "", **fields: Any) -> Wire:
    head = [{"role": "system", "content": system}] if system else []
    return Wire({}, {"messages": [*head, *said], **fields})


def hinted(said: Talk, hint: str) -> Wire:
    return Wire({"x-session-id": hint}, {"messages": said})


def one(ids: Sequence[str]) -> bool:
    return len(set(ids)) == 1 and ids[0] != ""


FIVE = talk("Fix the bug", "Which one?", "In a.py", "Done.", "Now b.py")
WORK = [*talk("Fix the bug"), *used("read", "x = 1"), *used("edit", "ok", "call_2")]
