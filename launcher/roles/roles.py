"""Small models beside the main one: which is loaded, which gave way, when it comes back.

Values in, decisions out; no clock, no process. Each small model has a *claim*, what it takes at
most, and an *order*: the first is loaded first and unloaded last.

    PENDING --fits--> LOADING --ready--> LOADED --unload--> UNLOADED --calm--> LOADING
       |                                                        ^
       +---------------------- does not fit --------------------+

One that gave way comes back when there was room for it, margin included, for ``calm_s`` on end,
with nobody waiting for memory and nothing taken back in that time: one at a time, in order. One
that has to go again soon after was brought back too early: it waits twice as long the next time.
A main model is a member too: always loaded at first, the last to go, the first to come back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from slotwise.launcher.plan.fitting import Headroom, verdict

LOADS_S = 900.0  # one that loads for longer no longer holds up the others


class State(StrEnum):
    """Where a model is; the ``state`` label of a series."""

    PENDING = "pending"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADED = "unloaded"
    OFF = "off"  # on demand, and nobody has asked for it yet


@dataclass(frozen=True, slots=True)
class Role:
    """One model. ``order`` 0: a main model; ``never``: not unloaded beside others."""

    name: str
    claim_bytes: int
    order: int = 0
    on_demand: bool = False
    never: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds."""

    calm_s: float = 60.0  # room for so long, and it comes back
    soon_s: float = 600.0  # gone again within this: brought back too early
    longest_s: float = 3600.0  # the most that ``calm_s`` is doubled to

    @classmethod
    def of(cls, calm_s: float) -> Patience:
        """All of them, by the first."""
        return cls(calm_s, 10 * calm_s, 60 * calm_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done with a model, in words with the figures it was decided on."""

    action: str  # load | unload | refuse
    name: str
    text: str
    claim_bytes: int
    headroom: Headroom | None = None


@dataclass(slots=True)
class _Member:
    role: Role
    state: State
    since: float
    calm_s: float
    calm_since: float | None = None
    came_back: float | None = None  # when it was last loaded again


class Roles:
    """All models of one slotwise that it may load and unload."""

    def __init__(self, roles: Iterable[Role], now: float, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._members: dict[str, _Member] = {}
        for role in sorted(roles, key=lambda r: r.order):
            state = State.OFF if role.on_demand else State.PENDING
            self._members[role.name] = _Member(role, state, now, self._patience.calm_s)

    def states(self) -> dict[str, State]:
        """By name, in order."""
        return {name: member.state for name, member in self._members.items()}

    def small(self) -> dict[str, State]:
        """The same of the small models alone."""
        return {n: m.state for n, m in self._members.items() if m.role.order}

    def loading(self) -> dict[str, int]:
        """The claims of those that load now, in bytes."""
        members = self._members.items()
        return {n: m.role.claim_bytes for n, m in members if m.state is State.LOADING}

    def retry_after_s(self, name: str, now: float) -> int:
        """When it makes sense to ask for one that is not loaded."""
        member = self._members[name]
        calm_for_s = now - member.calm_since if member.calm_since is not None else 0.0
        return max(1, round(member.calm_s - calm_for_s))

    # ------------------------------------------------------------ what happens

    def start(self, now: float) -> list[Decision]:
        """The main models are loaded, whatever there is: that they fit was planned before."""
        first = (m for m in self._members.values() if m.state is State.PENDING)
        mains = [m for m in first if not m.role.order]
        return [self._load(m, now, "a main model", None) for m in mains]

    def ready(self, name: str, now: float) -> None:
        self._enter(self._members[name], State.LOADED, now)

    def lost(self, name: str, now: float) -> None:
        """It ended by itself and is started again. Nothing where it had to go."""
        member = self._members[name]
        if member.state is State.LOADED:
            self._enter(member, State.LOADING, now)

    def measured(self, name: str, size_bytes: int) -> None:
        """A main model took so much at load: that is what it needs to come back. An engine that
        somebody else runs has no role here, and comes and goes as it likes."""
        member = self._members.get(name)
        if member is not None and member.role.order == 0:
            member.role = replace(member.role, claim_bytes=size_bytes)

    def unload(self, name: str, now: float, why: str) -> Decision | None:
        """It has to give way. None: it is not loaded."""
        member = self._members[name]
        if member.state not in (State.LOADED, State.LOADING):
            return None
        text, again = why, member.came_back
        if again is not None and now - again < self._patience.soon_s:
            member.calm_s = min(2 * member.calm_s, self._patience.longest_s)
            text += f"; it came back only {now - again:.0f} s ago: next time after "
            text += f"{member.calm_s:g} s of room"
        else:
            member.calm_s = self._patience.calm_s
        self._enter(member, State.UNLOADED, now)
        return Decision("unload", name, text, member.role.claim_bytes)

    def wanted(self, name: str, now: float, headroom: Headroom | None) -> Decision | None:
        """Somebody asks for a model that is loaded on demand. None: it is not one, or it loads."""
        member = self._members[name]
        if member.state is not State.OFF or headroom is None:
            return None
        said = verdict(member.role.claim_bytes, headroom)
        if said.fits:
            return self._load(member, now, f"asked for; {said.text}", headroom)
        return Decision(
            "refuse", name, f"asked for; {said.text}", member.role.claim_bytes, headroom
        )

    def sampled(self, now: float, headroom: Headroom | None, calm: bool) -> list[Decision]:
        """A sample of the machine's memory. ``calm``: nobody waits for memory, and nothing is
        being taken back. ``headroom`` None: it cannot be told."""
        for member in self._members.values():
            if member.state is State.UNLOADED:
                fits = headroom is not None and verdict(member.role.claim_bytes, headroom).fits
                if not (fits and calm):
                    member.calm_since = None
                elif member.calm_since is None:
                    member.calm_since = now
        if headroom is None or self._something_loads(now):
            return []
        out: list[Decision] = []
        for member in self._members.values():
            if member.state is State.PENDING and member.role.order:
                out.append(self._begin(member, now, headroom))
            elif member.state is State.UNLOADED and self._is_due(member, now):
                said = verdict(member.role.claim_bytes, headroom)
                text = f"room for {member.calm_s:g} s; {said.text}"
                out.append(self._load(member, now, text, headroom))
                member.came_back = now
            if out and out[-1].action == "load":
                break  # one at a time
        return out

    # ------------------------------------------------------------ the parts

    def _begin(self, member: _Member, now: float, headroom: Headroom) -> Decision:
        """Its first try, at once."""
        said = verdict(member.role.claim_bytes, headroom)
        if said.fits:
            return self._load(member, now, said.text, headroom)
        self._enter(member, State.UNLOADED, now)
        claim_bytes = member.role.claim_bytes
        return Decision("refuse", member.role.name, said.text, claim_bytes, headroom)

    def _load(self, member: _Member, now: float, text: str, headroom: Headroom | None) -> Decision:
        self._enter(member, State.LOADING, now)
        return Decision("load", member.role.name, text, member.role.claim_bytes, headroom)

    def _is_due(self, member: _Member, now: float) -> bool:
        return member.calm_since is not None and now - member.calm_since >= member.calm_s

    def _something_loads(self, now: float) -> bool:
        return any(
            m.state is State.LOADING and now - m.since < LOADS_S for m in self._members.values()
        )

    def _enter(self, member: _Member, state: State, now: float) -> None:
        member.state, member.since, member.calm_since = state, now, None
        if state is State.LOADING:  # memory is taken now: the others' time of calm begins anew
            for other in self._members.values():
                other.calm_since = None
