"""Why a request does not start yet, whatever slot is free.

These need more than the slots: who else waits, who runs and how far, which conversations live. So
they look at the scheduler's books, where the rules of ``policies.decide`` look at slots alone.
"""

from __future__ import annotations

from slotwise.policies.bounds import bound_s
from slotwise.policies.decide import all_at_work
from slotwise.policies.types import Hold, Place, Reason, Reject, Request, Rule, Verdict
from slotwise.proxy.core.book import Profile
from slotwise.proxy.core.contexts import BACKGROUND_KINDS
from slotwise.proxy.core.placement import UNPINNED
from slotwise.proxy.core.running import Engine
from slotwise.proxy.core.waiter import Waiter

# What waits for these waits on, whatever a side job does meanwhile.
_OF_ITS_OWN = (Reason.HELD, Reason.HOME_BUSY)


def not_yet(profile: Profile, waiter: Waiter, now: float) -> Hold | None:
    """A side job waits while somebody else waits for a first token."""
    view, waited_s = waiter.view, now - waiter.view.arrived
    request = view.request
    params = profile.params
    left_s = min(params.side_job_wait_s, view.line_s / 2) - waited_s
    if not params.order or request.kind not in BACKGROUND_KINDS or left_s <= 0:
        return None
    first = [r for r in profile.reading() if r.request.kind not in BACKGROUND_KINDS]
    queued = any(
        w.view.request.kind not in BACKGROUND_KINDS and w.reason not in _OF_ITS_OWN
        for w in profile.waiters.values()
    )
    if not first and not queued:
        return None
    return Hold(Reason.BACKGROUND, "somebody waits for a first token", left_s)


def not_cold(profile: Profile, waiter: Waiter, place: Place, now: float) -> Verdict:
    """Hold a long prompt back while another is read: each stalls every stream."""
    params = profile.params
    request = waiter.view.request
    uncached = len(request.tokens) - place.expected_cached
    if not params.cold or uncached <= params.cold_tokens:
        return place
    longest_s = bound_s(params.max_wait_s, waiter.view, params)
    left_s = longest_s - (now - waiter.view.arrived)
    if left_s <= 0:
        return place
    if not any(r.uncached > params.cold_tokens for r in profile.reading()):
        return place
    return Hold(Reason.COLD_PREFILL, "another long prompt is being read", left_s)


def unpinned_verdict(engine: Engine, request: Request) -> Verdict:
    """An engine that does not keep pins gets as many requests as it has slots."""
    largest = max(m.window for m in engine.mirrors)
    if len(request.tokens) >= largest:
        why = f"the prompt has {len(request.tokens)} tokens, the window holds {largest}"
        return Reject("exceed_context_size_error", why, largest)
    if engine.unpinned >= len(engine.mirrors):
        return Hold(Reason.SLOTS_BUSY, all_at_work(len(engine.mirrors)))
    return Place(UNPINNED, Rule.UNPINNED, 0, None, "the engine does not keep pins")
