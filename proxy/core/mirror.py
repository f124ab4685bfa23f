"""What we believe one slot of the engine holds, and whether it may be pinned.

A mirror never claims more than the engine holds. It keeps the *view*, the last prompt sent there
(what the client's next turn will extend), and of it the part that is in the KV (``held``), plus
the generated tokens behind it (``tail``: a count, their ids are not known). After an abort only
what the engine reported as computed is claimed; after an error that may have emptied the slot,
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from slotwise.policies.prefix import lcp
from slotwise.policies.ram_cache import State
from slotwise.policies.types import SIDE_JOB, Match, Request, Rule, SlotId, SlotView


class SlotState(StrEnum):
    IDLE = "idle"  # shown idle: may be pinned
    RUNNING = "running"
    UNPROVEN = "unproven"  # its request ended without a final event; only /slots can tell


@dataclass(slots=True)
class SlotMirror:
    """One slot. ``version`` changes with the view, so comparisons can be kept until then."""

    id: SlotId
    window: int  # tokens
    content: State = field(default_factory=State)
    version: int = 0
    state: SlotState = SlotState.IDLE
    since: float = 0.0  # when it entered this state
    request: Request | None = None  # at work here
    _before: State = field(default_factory=State)
    _view: SlotView | None = field(default=None, repr=False, compare=False)

    @property
    def resident(self) -> int:
        """Tokens whose KV we believe the slot holds."""
        return self.content.held + self.content.tail

    def view(self) -> SlotView:
        """As the rules see it; what time changes is set at each decision. Made anew only where
        more than that changed: nearly all slots are as they were."""
        content, is_idle = self.content, self.state is SlotState.IDLE
        view = self._view
        if view is None or view.state is not content or view.idle is not is_idle:
            view = self._view = SlotView(
                id=self.id,
                window=self.window,
                idle=is_idle,
                view_len=content.view.length,
                held=content.held,
                tail=content.tail,
                guest=content.guest,
                turns=content.turns,
                idle_s=0.0,
                calling=content.calling,
                state=content,
            )
        return view

    def begin(
        self, request: Request, rule: Rule, match: Match, now: float, loaded: State | None = None
    ) -> None:
        """The request is sent: its prompt replaces the view; what both share is still held.

        ``loaded``: what the engine fetches into the slot from its RAM cache first.
        """
        old = self._before = self.content
        held, turns = min(match.lcp, old.held), old.turns + 1 if match.is_home else 1
        if loaded is not None:
            # What is loaded is a belief: until the engine reports, no more is claimed than is sure.
            shared = lcp(request.tokens, loaded.view)
            held = min(held, shared, loaded.held)
            turns = loaded.turns + 1 if shared == len(loaded.view) else 1
        if not request.cache_prompt:
            held = 0
        self._replace(
            State(
                view=request.tokens,
                held=held,
                guest=rule is Rule.GUEST or request.kind == SIDE_JOB,
                turns=max(request.turns, turns),
                last_used=now,
                request=request.id,
                session=request.session,
                kind=request.kind,
                cached=held,
            )
        )
        self.request = request
        self._enter(SlotState.RUNNING, now)

    def progressed(self, processed: int, cached: int) -> None:
        """The engine has the prompt up to here, the first ``cached`` tokens from its cache."""
        held = min(max(self.content.held, processed), len(self.content.view))
        self._amend(held=held, cached=cached)

    def commit(
        self,
        prompt_tokens: int | None,
        completion: int | None,
        now: float,
        calling: bool = False,
    ) -> None:
        """The final event was read: prompt and answer are in the KV, but for the last token,
        which is sampled and never fed back."""
        held = len(self.content.view)
        if prompt_tokens is not None:
            held = min(held, prompt_tokens)
        self.content = replace(
            self.content,
            held=held,
            tail=max(0, (completion or 0) - 1),
            last_used=now,
            calling=calling,
        )
        self._end(SlotState.IDLE, now)

    def reused(self, cached: int) -> None:
        """So much of the prompt came from the cache, as the engine reports at its end."""
        self._amend(cached=cached)

    def unused_since(self, then: float) -> bool:
        """Whether it could have been had then, and nobody has had it."""
        return self.state is SlotState.IDLE and self.content.last_used <= then

    def owe(self, rent_s: float) -> None:
        """Others had to read so much again while this was kept."""
        self.content = replace(self.content, rent_s=self.content.rent_s + rent_s)

    def abort(self, generated: int, now: float) -> None:
        """The request ended in the middle. The engine keeps what it computed, and may go on for
        a while. ``generated``: tokens seen; their prompt was complete then."""
        if generated > 0:
            self._amend(held=len(self.content.view), tail=generated - 1)
        self._amend(last_used=now)
        self._end(SlotState.UNPROVEN, now)

    def refused(self, now: float) -> None:
        """The engine turned the request down before it touched the slot."""
        self._replace(self._before)
        self._end(SlotState.UNPROVEN, now)

    def never_sent(self, now: float) -> None:
        """The request did not reach the engine: all is as before."""
        self._replace(self._before)
        self._end(SlotState.IDLE, now)

    def forget(self) -> None:
        """What the slot holds is not known."""
        self._replace(State(last_used=self.content.last_used))

    def suspect(self, now: float) -> None:
        """Somebody else uses it: nothing is known until /slots shows it idle."""
        self.forget()
        self._end(SlotState.UNPROVEN, now)

    def shown_idle(self, n_tokens: int | None, now: float) -> bool:
        """A /slots reply shows it idle, holding so many tokens. False: it holds fewer than was
        believed, so something else happened to it, and the belief is dropped."""
        if self.state is SlotState.UNPROVEN:
            self._enter(SlotState.IDLE, now)
        if (n_tokens or 0) >= self.resident:
            return True
        self.forget()
        return False

    def _replace(self, content: State) -> None:
        self.content = content
        self.version += 1

    def _amend(
        self,
        held: int | None = None,
        tail: int | None = None,
        last_used: float | None = None,
        cached: int | None = None,
    ) -> None:
        c = self.content
        self.content = replace(
            c,
            held=c.held if held is None else held,
            tail=c.tail if tail is None else tail,
            last_used=c.last_used if last_used is None else last_used,
            cached=c.cached if cached is None else cached,
        )

    def _enter(self, state: SlotState, now: float) -> None:
        self.state = state
        self.since = now

    def _end(self, state: SlotState, now: float) -> None:
        self.request = None
        self._before = State()
        self._enter(state, now)
