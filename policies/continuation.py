"""Does this request continue what a slot holds, and how long is its home worth waiting for.

A shared beginning alone says little: every chat of one client starts with the same system text
and tools. A conversation is told by what comes after: the shared part must reach the end of the
first user turn (``first_user_end``). A raw prompt has no turns, so it must repeat nearly all of
what the slot served. Everything here compares with the *view* of a slot, the last prompt served
there, because that is what the client's next turn is built from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from slotwise.policies.params import Params
from slotwise.policies.prefix import Tokens, lcp
from slotwise.policies.types import SIDE_JOB, Match, Request

_RAW_SHARE = 7 / 8  # of a raw prompt's predecessor, and one chunk at most may differ

_BRANCH_SHARE = 0.5  # of what a slot served: an edit that keeps less begins anew
_PATIENCE_MAX_S = 30.0  # a long read is worth half a minute

STRANGER = Match(0, False, False, "stranger")


def match(request: Request, view: Tokens, session: str, params: Params, guess: int = 0) -> Match:
    """Compare a prompt with the last prompt a slot served, and with the session it was for.

    ``guess``: of the tokens they share, for speed.
    """
    view_len = view.length
    if not view_len:
        return STRANGER
    shared = lcp(request.tokens, view, guess)
    covers = shared == view_len
    same = covers and shared == request.tokens.length
    if same:
        return Match(shared, covers, same, "continues")
    by_tokens = _raw_kind if request.first_user_end == 0 else _chat_kind
    kind = by_tokens(request, shared, view_len, params.chunk_tokens)
    if kind in ("kin", "stranger") and _same_session(request, session):
        kind = "session"  # a changed clock, reordered tools: the same conversation all the same
    return Match(shared, covers, same, kind)


def _same_session(request: Request, session: str) -> bool:
    """A side job may carry its conversation's id, and is a stranger to it all the same."""
    return bool(session) and request.session == session and request.kind != SIDE_JOB


_Kind = Literal["continues", "branch", "session", "kin", "stranger"]
_RANK: dict[_Kind, int] = {"continues": 3, "branch": 2, "session": 1}


def _chat_kind(request: Request, shared: int, view_len: int, chunk_tokens: int) -> _Kind:
    if shared < request.first_user_end:
        return "stranger"
    if shared >= view_len - chunk_tokens:
        return "continues"
    return "branch" if shared >= _BRANCH_SHARE * view_len else "kin"


def _raw_kind(request: Request, shared: int, view_len: int, chunk_tokens: int) -> _Kind:
    if shared >= max(view_len - chunk_tokens, _RAW_SHARE * view_len):
        return "continues"
    return "kin" if shared >= _BRANCH_SHARE * view_len else "stranger"


def owns(matches: Sequence[Match]) -> bool:
    """Whether some slot holds this request's conversation."""
    return not _RANK.keys().isdisjoint([m.kind for m in matches])


def home(matches: Sequence[Match], fits: Sequence[bool]) -> int | None:
    """The slot that holds this conversation: a continuation before a branch before its session's
    slot, then the longest prefix, then the slot that is a full prefix (it needs no rollback).
    None: there is none."""
    best: tuple[tuple[int, int, bool], int] | None = None
    for index, m in enumerate(matches):
        if m.kind not in _RANK or not fits[index]:
            continue
        rank = (_RANK[m.kind], m.lcp, m.covers)
        if best is None or rank > best[0]:
            best = (rank, index)
    return None if best is None else best[1]


def patience_s(home_s: float, elsewhere_s: float) -> float:
    """How long a busy home is waited for: what going elsewhere would cost, within a bound."""
    return min(max(elsewhere_s - home_s, 0.0), _PATIENCE_MAX_S)
