"""A journal of every event and the actions it led to: replayed, it gives the same actions again.

One JSON line per ``handle`` call of the scheduler: the time, the event, the actions. Feeding the
events of a file at their times to a fresh ``Scheduler`` with the same parameters decides as the
server did, so a question about production becomes a test.

**It holds what users wrote.** Token ids are the prompt: whoever has the model's vocabulary can read
them back. So it is written only where it is asked for, and only its owner may read it (mode 0600).

A prompt is written as the number of tokens it shares with an earlier one, by that request's id, and
the rest; of a chat that grows only what is new takes room. The lines are made and written by a
thread of their own: the server's loop pays for one ``put``. At ``max_bytes``, when the disk fails
or cannot keep up, the journal ends with a line that says so, and serving goes on.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, get_args

import orjson
from pydantic import TypeAdapter

from slotwise.policies.prefix import EMPTY, Tokens, lcp
from slotwise.policies.types import Request, Section
from slotwise.proxy.core.events import Action, Event, MemorySampled, RequestArrived

_OWNER = 0o600


def open_own(path: str | Path, flags: int) -> int:
    """A descriptor for writing; only the owner may read the file. Raises ``OSError``.

    ``flags``: beside O_WRONLY and O_CREAT, such as O_APPEND.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, _OWNER)
    os.fchmod(descriptor, _OWNER)  # a file that was there keeps its mode otherwise
    return descriptor


def end_thread(thread: threading.Thread, pending: queue.Queue[Any], limit_s: float) -> None:
    """Let a thread that ends on None write what is pending; takes twice ``limit_s`` at most.

    May be called twice.
    """
    if not thread.is_alive():
        return
    try:
        pending.put(None, timeout=limit_s)
    except queue.Full:
        return  # a disk that hangs: the thread ends with the process
    thread.join(limit_s)


_ONE_EVERY_S = 60.0
_Sampled = tuple[float, MemorySampled]


class Writer(Protocol):
    """What a journal is to whoever writes."""

    def write(self, now: float, event: Event, actions: Sequence[Action]) -> None: ...

    def close(self) -> None: ...


class Thinned:
    """Passes entries on to ``journal``, but for the samples that nobody misses.

    ``calm``: whether the sample that was just taken is forgotten with the next: it was read, it is
    not counted as low, and nobody waits for memory.
    """

    def __init__(self, journal: Writer, calm: Callable[[], bool]) -> None:
        self._journal = journal
        self._calm = calm
        self._written: _Sampled | None = None  # the last entry written, while it is a calm sample
        self._held: _Sampled | None = None  # the calm sample after it

    def write(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """Note one ``handle`` call; never blocks and never raises."""
        calm = isinstance(event, MemorySampled) and not actions and self._calm()
        if not calm or not isinstance(event, MemorySampled):
            self._let_go()
            self._journal.write(now, event, actions)
            self._written = None
        elif self._written is None or not _alike(self._held or self._written, event):
            self._let_go()
            self._journal.write(now, event, actions)
            self._written = now, event
        else:
            self._held = now, event
            if now - self._written[0] >= _ONE_EVERY_S:
                self._let_go()

    def close(self) -> None:
        """May be called twice."""
        self._let_go()
        self._journal.close()

    def _let_go(self) -> None:
        """Write the sample that was held back."""
        if self._held is not None:
            self._journal.write(*self._held, [])
            self._written, self._held = self._held, None


def _alike(before: _Sampled, event: MemorySampled) -> bool:
    """Whether both tell of the same engines: what one took is kept from the last that told it."""
    return {name for name, _ in before[1].grown} == {name for name, _ in event.grown}


log = logging.getLogger(__name__)

_VERSION = 1
_DEFAULT_MAX_BYTES = 1 << 30
_IDLE_S = 1.0  # how soon the thread sees that writing was given up
_CLOSE_LIMIT_S = 10.0
_MAX_PENDING = 100_000  # entries; a disk this far behind will not catch up
_REMEMBERED = 32  # prompts that a later one may refer to
_ID_BYTES = 4
_TYPES: dict[str, Any] = {cls.__name__: cls for cls in (*get_args(Event), *get_args(Action))}

_Entry = tuple[float, Event, list[Action]]


class Journal:
    """Writes a new journal file; a file of that name is replaced."""

    def __init__(self, path: Path, max_bytes: int = _DEFAULT_MAX_BYTES) -> None:
        """Raises ``OSError`` if the file cannot be made."""
        self._path = path
        self._file = os.fdopen(open_own(path, os.O_TRUNC), "wb")
        self._max_bytes = max_bytes
        self._written = 0
        self._encoder = _Prompts()
        self._pending: queue.Queue[_Entry | None] = queue.Queue(_MAX_PENDING)
        self._ended: str | None = None  # why nothing more is written
        self._put(_line({"slotwise_journal": _VERSION}))
        self._thread = threading.Thread(target=self._drain, name="journal", daemon=True)
        self._thread.start()

    def write(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """Note one ``handle`` call; never blocks and never raises."""
        if self._ended is None:
            try:
                self._pending.put_nowait((now, event, list(actions)))
            except queue.Full:
                self._ended = f"the disk is {_MAX_PENDING} entries behind"

    def close(self) -> None:
        """Write what is pending and end the file; takes 10 s at most. May be called twice."""
        end_thread(self._thread, self._pending, _CLOSE_LIMIT_S)

    # ------------------------------------------------------------ the thread

    def _drain(self) -> None:
        try:
            with self._file:
                while self._take():
                    pass
                self._put(_line({"end": self._ended or "closed"}))
        except (OSError, TypeError, ValueError) as problem:
            self._ended = f"cannot be written: {problem}"
        if self._ended:
            log.warning("journal %s ended: %s", self._path, self._ended)

    def _take(self) -> bool:
        """Write one entry, if one comes. False: it is over."""
        if self._pending.empty():
            self._file.flush()  # whoever looks at the file sees all there is
        try:
            entry = self._pending.get(timeout=_IDLE_S)
        except queue.Empty:
            return self._ended is None
        if entry is None:
            return False
        line = _line(self._encoder.plain(entry))
        if self._written + len(line) > self._max_bytes:
            self._ended = f"max_bytes {self._max_bytes} reached"
            return False
        self._put(line)
        return True

    def _put(self, line: bytes) -> None:
        self._file.write(line)
        self._written += len(line)


def read(path: Path) -> Iterator[_Entry]:
    """The entries of a journal, equal to what was written.

    A last line that was cut off by a crash is left out. Raises ``ValueError`` naming the line for a
    file that is no journal, or a broken line before the last.
    """
    decoder = _Prompts()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                reported = orjson.loads(line)
                if number == 1:
                    _check_header(reported)
                elif "end" in reported:
                    return
                else:
                    yield decoder.entry(reported)
            except (KeyError, TypeError, ValueError) as problem:
                raise ValueError(f"{path}:{number}: {problem}") from None


class _Prompts:
    """Entries as plain data and back. Writer and reader remember the same last prompts."""

    def __init__(self) -> None:
        self._last: dict[str, Tokens] = {}

    def plain(self, entry: _Entry) -> dict[str, Any]:
        now, event, actions = entry
        if isinstance(event, RequestArrived):
            body: Any = {"request": self._plain_request(event.request)}
        else:
            body = event
        return {
            "t": now,
            "e": [type(event).__name__, body],
            "a": [[type(action).__name__, action] for action in actions],
        }

    def entry(self, reported: dict[str, Any]) -> _Entry:
        name, body = reported["e"]
        if name == RequestArrived.__name__:
            event: Event = RequestArrived(self._request(body["request"]))
        else:
            event = _made(name, body)
        return reported["t"], event, [_made(name, body) for name, body in reported["a"]]

    def _plain_request(self, request: Request) -> dict[str, Any]:
        fields = {name: getattr(request, name) for name in request.__slots__}
        like, shared = self._closest(request.tokens)
        rest = request.tokens.packed[shared * _ID_BYTES :]
        fields["tokens"] = {"like": like, "shared": shared, "rest": b64encode(rest).decode()}
        self._remember(request)
        return fields

    def _request(self, fields: dict[str, Any]) -> Request:
        reported = fields["tokens"]
        earlier = self._last[reported["like"]] if reported["shared"] else EMPTY
        rest = b64decode(reported["rest"], validate=True)
        tokens = Tokens(earlier.packed[: reported["shared"] * _ID_BYTES] + rest)
        sections = tuple(Section(*reported) for reported in fields["sections"])
        request = Request(**{**fields, "tokens": tokens, "sections": sections})
        self._remember(request)
        return request

    def _closest(self, tokens: Tokens) -> tuple[str | None, int]:
        """The remembered prompt that shares most with this one, and how many tokens."""
        best: tuple[str | None, int] = (None, 0)
        for id, earlier in self._last.items():
            shared = lcp(earlier, tokens)
            if shared > best[1]:
                best = (id, shared)
        return best

    def _remember(self, request: Request) -> None:
        self._last.pop(request.id, None)
        self._last[request.id] = request.tokens
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]


def _line(reported: dict[str, Any]) -> bytes:
    # list: a SlotId is a tuple with names, which orjson does not take by itself
    return orjson.dumps(reported, default=list, option=orjson.OPT_APPEND_NEWLINE)


def _check_header(reported: Any) -> None:
    if not isinstance(reported, dict) or reported.get("slotwise_journal") != _VERSION:
        raise ValueError(f"not a slotwise journal of version {_VERSION}")


def _made(name: str, body: dict[str, Any]) -> Any:
    """The event or action of that name from its plain fields."""
    return _adapter(name).validate_python(body)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    if name not in _TYPES:
        raise ValueError(f"unknown event or action {name!r}")
    return TypeAdapter(_TYPES[name])
