"""What the status pages say in words: why a request waits, what a slot does, what became of tokens.

The one place for these words: comment lines, the status, the lanes page and the terminal show the
same. Only figures and names of ours come in, never a word of a prompt.
"""

from __future__ import annotations

from slotwise.policies.attribution import Cause
from slotwise.policies.types import Reason

SESSION_CHARS = 8  # of a session's opaque id: enough to tell conversations apart

# (what is so, what follows when time alone changes it); None: the rule's own words say it.
_WAITS: dict[str, tuple[str | None, str]] = {
    Reason.NONE: ("about to be placed", ""),
    Reason.ENGINE_LOADING: ("no engine is ready yet", ""),
    Reason.MAX_RUNNING: (None, ""),
    Reason.HOME_BUSY: ("home slot busy", "may go elsewhere in"),
    Reason.SLOTS_BUSY: (None, ""),
    Reason.HELD: ("the idle slots are kept for their conversations", "may take one in"),
    Reason.COLD_PREFILL: ("another long prompt is being read", ""),
    Reason.BACKGROUND: ("a side job: others wait for a first token", "starts at the latest in"),
    Reason.WINDOW: (None, ""),
    Reason.POOL: (None, ""),
    Reason.MEMORY: (None, ""),
}

_CAUSES = {
    Cause.CACHED: "from the cache",
    Cause.NEW: "new, never seen before",
    Cause.CHANGED: "the conversation's earlier text changed",
    Cause.ELSEWHERE: "another slot held them",
    Cause.EVICTED: "displaced from the cache since",
    Cause.ENGINE: "held, but the engine could not reuse them",
    Cause.MIN_ONE: "last token of a whole hit, always computed",
    Cause.UNKNOWN: "not reported by the engine",
}


def why_it_waits(reason: Reason, why: str, left_s: float | None) -> str:
    """``why``: the rule's own words, with its figures; ``left_s``: until time alone may change
    the answer."""
    said, then = _WAITS.get(reason, (f"waiting for {reason.replace('_', ' ')}: {why}", ""))
    if said is None:
        said = why
    return f"{said}; {then} {seconds(left_s)}" if then and left_s is not None else said


def as_many_run(n: int) -> str:
    """The profile lets no more than ``n`` run at once."""
    return "1 request runs, no more at once" if n == 1 else f"{n} requests run, no more at once"


def what_a_slot_does(state: str, read: bool | None, held: int, prompt: int) -> str:
    """``read``: whether its request's prompt is in the KV; None: the engine does not tell."""
    if state == "unproven":
        return "ended early, not shown idle yet"
    if state == "idle":
        return "idle" if prompt else "empty"
    if read:
        return "answering"
    return "at work" if read is None else f"reading {held:,} of {prompt:,}"


def cause(name: Cause) -> str:
    """What became of the tokens of this cause."""
    return _CAUSES[name]


def seconds(value: float) -> str:
    """A time to come, rounded up: what is due is never said to be past."""
    whole = max(1, -int(-value // 1))
    return f"{whole} s" if whole < 120 else f"{-(-whole // 60)} min"
