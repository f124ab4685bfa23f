"""What runs: engines, and the requests that were sent to them until their one end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slotwise.policies.cost import prefill_s, run_s
from slotwise.policies.params import Cost
from slotwise.policies.park import Park, State
from slotwise.policies.types import Request, Rule
from slotwise.proxy.core.mirror import SlotMirror


@dataclass(slots=True, eq=False)
class Engine:
    """One life of one llama-server process; a restart is another object."""

    name: str
    profile: str
    mirrors: list[SlotMirror]
    pool: int | None  # tokens of the unified KV pool; None: one stream per slot
    pins: bool
    park: Park
    parked: int = 0  # how often what its RAM cache holds has changed
    unpinned: int = 0  # running requests whose slot the engine chose

    def replace_park(self, states: tuple[State, ...]) -> None:
        """What its RAM cache holds from now on."""
        self.park = replace(self.park, states=states)
        self.parked += 1


@dataclass(slots=True, eq=False)
class Running:
    """A dispatched request, until its one end."""

    request: Request
    engine: Engine
    mirror: SlotMirror | None  # None: unpinned
    started: float  # s
    expected: int  # tokens
    rule: Rule
    why: str = ""  # the numbers it was placed on
    read: bool = False  # its prompt is in the KV
    before: Park | None = None  # the RAM cache, if sending it changed that
    # What its times can be taken for, see ``learned_cost.py``.
    alone: bool = True  # no other prompt was read beside its own
    generating: float = 0.0  # since when, as far as that is reported (s)
    beside: float = 0.0  # integral over time of the number of requests that ran, until then
    stalled_s: float = 0.0  # since then other prompts were read for so long

    def prefill_s(self, cost: Cost) -> float:
        """Seconds that its prompt takes by itself."""
        return prefill_s(cost, self.expected, len(self.request.tokens))

    def run_left_s(self, cost: Cost, sequences: int, now: float) -> float:
        """What is left of it beside so many others, by the cost model and its limit (s)."""
        request = self.request
        n = len(request.tokens)
        whole_s = run_s(cost, self.expected, n, request.max_tokens, max(1, sequences))
        # What takes longer than expected may take as long again: answers are heavy-tailed.
        return abs(whole_s - (now - self.started))

    @property
    def uncached(self) -> int:
        return len(self.request.tokens) - self.expected
