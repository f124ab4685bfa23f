"""What may come in at all: windows, the unified pool, the bounds of the queue."""

from __future__ import annotations

from policies.params import Params
from policies.types import Request


def room_wanted(request: Request, params: Params) -> int:
    """Tokens a request should be able to generate where it sits: its limit, or ``min_room``."""
    if not params.window.enabled:
        return 0
    asked = request.max_tokens
    if asked is None or asked < 0:
        return params.window.min_room
    return min(asked, params.window.min_room)


def fits(request: Request, window: int, params: Params) -> bool:
    """Whether a slot of this window may take it, where another has a larger one (the largest
    takes whatever the engine would: a prompt shorter than its window)."""
    n = len(request.tokens)
    if n >= window:
        return False
    if not params.window.enabled:
        return True
    return n + room_wanted(request, params) + params.window.margin <= window


def granted_tokens(request: Request, window: int, params: Params) -> int | None:
    """``max_tokens`` cut to the room behind the prompt; None: leave it as it was asked."""
    knobs = params.window
    asked = request.max_tokens
    if not knobs.enabled or not knobs.cut_max_tokens or asked is None or asked < 0:
        return None
    room = max(1, window - len(request.tokens) - knobs.margin)
    return room if asked > room else None


def pool_need(request: Request, params: Params) -> int:
    """Tokens of a unified KV pool that a running request may come to use."""
    return len(request.tokens) + room_wanted(request, params) + params.window.margin
