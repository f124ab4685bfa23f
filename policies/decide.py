"""The decision tree: one verdict for one waiting request.

The caller goes through the waiting requests in order, while fewer than ``max_running`` run:

1. A prompt no window can hold is refused.
2. (A request that does not fit beside what runs in a unified KV pool is held.)
3. Home: the slot that holds its conversation.
   3a idle: place it there, whatever its age.
   3b busy: hold for ``patience``; then go on at 5 only if that is sooner than waiting on.
      A second copy of a running request of the same key waits behind the first.
   3c no tokens tell it, but its session owns a slot: that is its home, its prompt changed. Where
      not even the head is the same, 5.
4. Guest: short, shares little. It takes a slot whose loss nobody will feel; after a wait, the
   cheapest.
5. New or displaced: the idle slot that costs the fewest seconds, with what it destroys counted.
   Beside an empty slot or a guest's, no live conversation of several turns is a candidate.
6. Otherwise hold, with the reason.
"""

from __future__ import annotations

from slotwise.policies import admission, continuation, guest
from slotwise.policies.affinity import is_live
from slotwise.policies.bounds import most_s
from slotwise.policies.cost import prefill_s
from slotwise.policies.slot_costs import SlotCosts, View
from slotwise.policies.types import (
    Place,
    Reason,
    Reject,
    Rule,
    SlotView,
    Verdict,
    Wait,
    WaitingView,
)


def decide(waiting: WaitingView, view: View, waited_s: float) -> Verdict:
    """The verdict for one request that has waited this long; pure, and repeatable."""
    request, params = waiting.request, view.params
    if not view.slots:
        return Wait(Reason.ENGINE_LOADING, "no engine is ready")
    n = len(request.tokens)
    if n >= view.largest:  # 1
        return Reject(
            "exceed_context_size_error",
            f"the prompt has {n} tokens, the largest window holds {view.largest} "
            f"(prompt and answer together)",
            view.largest,
        )
    if view.pool_free is not None:  # 2
        need = admission.pool_need(request, params)
        if need > view.pool_free:
            return Wait(Reason.POOL, f"needs {need} tokens of the pool, {view.pool_free} are free")
    costs = SlotCosts(waiting, view, waited_s, view.fits(request))
    home: int | None = None
    if params.home and waiting.owns:
        home = continuation.home(waiting.matches, costs.fits)
    if home is not None:
        verdict = None if _begins_anew(costs, home) else _at_home(costs, home)  # 3
        if verdict is not None:
            return verdict
    elif not view.resting:
        return _hold(costs)  # whatever it is
    elif guest.is_guest(waiting, view.slots, params):
        return _as_guest(costs)  # 4
    return _cheapest(costs, home)  # 5, 6


_LOOK_AGAIN_S = 0.1
_SAME_HEAD = 12  # tokens: a template's own and the first words
_HOME_RULE = {"continues": Rule.HOME, "branch": Rule.BRANCH, "session": Rule.SESSION}


def _place(costs: SlotCosts, index: int, rule: Rule, why: str) -> Place:
    request, slot = costs.waiting.request, costs.view.slots[index]
    option = costs.option(index)
    return Place(
        index,
        rule,
        option.cached,
        admission.granted_tokens(request, slot.window, costs.view.params),
        f"{why}, emptied first" if option.empties else why,
        option.empties,
    )


def _begins_anew(costs: SlotCosts, home: int) -> bool:
    """Whether its session owns that slot, and not even the head is the same, as where each second
    request has tools. What the slot holds may be wanted again, so the request is placed by cost.
    Where the head is the same, as before a clock in the system text, the old content is not."""
    match = costs.waiting.matches[home]
    return match.kind == "session" and match.lcp < _SAME_HEAD


def _at_home(costs: SlotCosts, home: int) -> Verdict | None:
    """Rule 3. None: the home is not worth waiting for any longer."""
    slot, m = costs.view.slots[home], costs.waiting.matches[home]
    if slot.idle:
        why = f"shares {m.lcp} of {slot.view_len} tokens served there"
        return _place(costs, home, _HOME_RULE[m.kind], why)
    params = costs.view.params
    longest_s = most_s(params.max_wait_s, costs.waiting.request, params)
    if costs.waited_s >= longest_s:
        return None
    if m.same and slot.running_key == costs.waiting.request.key:
        return Wait(
            Reason.HOME_BUSY,
            f"the same request runs on {slot.id}",
            longest_s - costs.waited_s,
        )
    n = len(costs.waiting.request.tokens)
    home_s = prefill_s(params.cost, min(m.lcp, n - 1), n)  # once what runs there is read
    elsewhere_s = min(
        (costs.own_s(i) + costs.loss_s(i) for i in costs.free()), default=float("inf")
    )
    patience_s = continuation.patience_s(home_s, elsewhere_s)
    until_s = patience_s
    if costs.waited_s >= patience_s:
        if elsewhere_s < slot.run_left_s + home_s:
            return None
        # The end is an estimate: looked at again, the later the longer it has taken.
        until_s = costs.waited_s + max(patience_s, costs.waited_s / 4, _LOOK_AGAIN_S)
    until_s = min(until_s, longest_s)
    return Wait(
        Reason.HOME_BUSY,
        f"{slot.id} holds {m.lcp} tokens of it; {home_s:.1f} s there, "
        f"{elsewhere_s:.1f} s elsewhere, decides anew after {until_s:.1f} s",
        until_s - costs.waited_s,
    )


def _as_guest(costs: SlotCosts) -> Verdict:
    """Rule 4."""
    slots = costs.view.slots
    idle = costs.idle()
    if not idle:
        return _hold(costs)
    seconds, _, index = min([(_guest_s(costs, i), slots[i].id.id_slot, i) for i in idle])
    loss_s = costs.loss_s(index)
    wait_s, longest_s = _wait_s(costs, index), costs.view.params.guest_wait_s
    soon_s = guest.another_ends_in_s(slots)
    if wait_s and soon_s < loss_s and costs.waited_s < longest_s:
        why = f"another guest's slot is free in {soon_s:.1f} s"
        return Wait(Reason.HELD, why, longest_s - costs.waited_s)
    left_s = wait_s - costs.waited_s
    if left_s <= 0:
        return _place(costs, index, Rule.GUEST, f"{seconds:.2f} s, {loss_s:.2f} of them others'")
    return Wait(
        Reason.HELD,
        f"every idle slot holds a live conversation; the cheapest goes in {left_s:.1f} s",
        left_s,
    )


def _guest_s(costs: SlotCosts, index: int) -> float:
    """Seconds that a guest costs on an idle slot: its own wait and work, and the expected loss."""
    left_s = max(0.0, _wait_s(costs, index) - costs.waited_s)
    return left_s + costs.own_s(index) + costs.loss_s(index)


def _wait_s(costs: SlotCosts, index: int) -> float:
    """How long a guest waits before it may take that slot."""
    own_s, loss_s = costs.own_s(index), costs.loss_s(index)
    slot, params = costs.view.slots[index], costs.view.params
    return costs.view.waits_pay * guest.wait_before_taking_s(slot, own_s, loss_s, params)


def _cheapest(costs: SlotCosts, home: int | None) -> Verdict:
    """Rules 5 and 6."""
    slots, params = costs.view.slots, costs.view.params
    idle = costs.free()
    if not idle and costs.idle():
        return _kept(costs)
    if not idle:
        if home is not None:
            why = f"its home {slots[home].id} and all other slots are at work"
            return Wait(Reason.SLOTS_BUSY, why)
        return _hold(costs)
    if not params.affinity:
        index = max(idle, key=lambda i: (slots[i].view_len == 0, slots[i].idle_s, i))
        return _place(costs, index, _newcomer_rule(slots[index]), "least recently used")
    candidates = _unprotected(costs, idle)
    cost_s, _, index = min([(costs.cost_s(i), -slots[i].id.id_slot, i) for i in candidates])
    why = f"{cost_s:.2f} s, the least of {len(candidates)}"
    own = costs.waiting.matches[index].kind == "session"
    return _place(costs, index, Rule.SESSION if own else _newcomer_rule(slots[index]), why)


def _kept(costs: SlotCosts) -> Wait:
    """All that is idle is kept for its owners: until the first of them has had its time."""
    left_s = min(costs.kept_for_s(i) for i in costs.idle())
    return Wait(Reason.HELD, f"the idle slots are kept for their owners, {left_s:.1f} s", left_s)


def _newcomer_rule(slot: SlotView) -> Rule:
    return Rule.NEW if slot.view_len == 0 else Rule.AFFINITY


def _unprotected(costs: SlotCosts, idle: list[int]) -> list[int]:
    """The idle slots without live conversations of several turns, while a free place is among
    them. Its own kin is no stranger: what an edited history cuts off was its own."""
    slots, matches = costs.view.slots, costs.waiting.matches
    if not any(slots[i].view_len == 0 or slots[i].guest for i in idle):
        return idle
    return [
        i
        for i in idle
        if slots[i].turns < 2 or not is_live(slots[i]) or matches[i].kind != "stranger"
    ]


def _hold(costs: SlotCosts) -> Wait:
    """Rule 6: why no slot can take it now."""
    if costs.view.resting:
        n = len(costs.waiting.request.tokens)
        return Wait(Reason.WINDOW, f"the idle slots' windows are too small for {n} tokens and room")
    return Wait(Reason.SLOTS_BUSY, all_at_work(len(costs.view.slots)))


def all_at_work(slots: int) -> str:
    """In words."""
    return "the only slot is at work" if slots == 1 else f"all {slots} slots are at work"
