"""One llama-server in virtual time: its choice of slot, its RAM cache, its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from slotwise.bench.sim.cost_model import CostModel
from slotwise.bench.trace.rows import Row
from slotwise.policies.prefix import EMPTY, Tokens, lcp, pack

# Tokens: what llama-server takes without -b, and what slotwise gives it.
BARE_BATCH, SLOTWISE_BATCH = 2048, 512


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The launch line, as far as it matters."""

    slots: int
    park_tokens: int = 0  # --cache-ram
    idle_snapshots: bool = True  # off: --no-cache-idle-slots
    batch_tokens: int = BARE_BATCH  # -b
    streams: bool = False  # whole answers too, and tells its progress: it notices who left


@dataclass(slots=True)
class Job:
    """One request at the engine. ``output`` tokens are generated, one at least."""

    id: str
    row: Row
    output: int
    pin: int | None  # None: the engine chooses
    empties: bool = False  # its slot is given a state of one token before it is sent
    slot: int = -1
    cached: int = 0
    begun: float = -1.0  # s, when it got its slot
    started: float = -1.0  # s, since when the engine counts its prompt's time
    done: int = 0  # prompt tokens in the KV
    left: int = 0  # tokens still to generate
    streams: bool = True  # else one answer at the end
    abandoned: float | None = None  # s, when its client left
    reported: bool = False  # each batch is reported to the client, whoever it is


class Output(NamedTuple):
    """What the engine said at the end of a batch."""

    job: Job
    first: bool  # its first token
    finished: bool


_LEAST_KEEP = 0.25  # an entry of which less would be kept is not spent on a prompt


class EngineRamCache:
    """``limit_tokens``: 0 keeps nothing."""

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.entries: list[Tokens] = []
        self.tokens = 0

    def save(self, held: Tokens) -> int:
        """Store a slot's state; returns the tokens copied, 0 where there was nothing to do."""
        if not len(held) or len(held) > self.limit_tokens:
            return 0
        shared = [len(held) if entry is held else lcp(entry, held) for entry in self.entries]
        if any(n == len(held) for n in shared):
            return 0
        self.entries = [e for e, n in zip(self.entries, shared, strict=True) if n < len(e)]
        self.entries.append(held)
        self.tokens = sum(map(len, self.entries))
        while self.tokens > self.limit_tokens:
            self.tokens -= len(self.entries.pop(0))
        return len(held)

    def load(self, held: Tokens, prompt: Tokens) -> Tokens | None:
        """Take out the entry that serves the prompt better than what the slot holds, if any."""
        common = lcp(held, prompt)
        keep = common / len(held) if len(held) else -1.0
        similar = common / len(prompt)
        best: Tokens | None = None
        for entry in self.entries:
            common = lcp(entry, prompt)
            entry_keep, entry_similar = common / len(entry), common / len(prompt)
            if entry_keep >= _LEAST_KEEP and entry_keep > keep and entry_similar > similar:
                keep, similar, best = entry_keep, entry_similar, entry
        if best is not None:
            self.entries.remove(best)
            self.tokens -= len(best)
        return best


_NEVER = float("inf")
ONE_TOKEN = pack([(1 << 32) - 1])  # of no prompt: what an emptied slot holds
_SIMILARITY = 0.1  # -sps: a slot that holds a smaller share of the prompt counts as a stranger
_UNNOTICED_S = 1.0  # without a result for anybody, before connections are looked at
_WORTH_SAVING = 0.5  # a state of which less than this would be kept is saved first


class EngineMisuseError(RuntimeError):
    """A request was pinned to a slot that is at work, which a real engine answers with damage."""


@dataclass(slots=True)
class _Slot:
    held: Tokens = EMPTY
    job: Job | None = None
    released: float = -1.0  # s; -1: never used


@dataclass(slots=True)
class _Batch:
    """What is being computed. ``steps`` > 1 only where all sequences generate."""

    begun: float
    step_s: float
    steps: int = 1
    pieces: list[tuple[Job, int]] = field(default_factory=list)
    generating: list[Job] = field(default_factory=list)

    @property
    def ends(self) -> float:
        return self.begun + self.steps * self.step_s


class EngineModel:
    """Jobs in, outputs out; ``next_at`` says when the next outputs are due."""

    def __init__(self, setup: EngineSetup, cost: CostModel) -> None:
        self.setup = setup
        self.cost = cost
        self.ram = EngineRamCache(setup.park_tokens)
        self.next_at = _NEVER
        self.prefill_s = 0.0
        self.copy_s = 0.0
        self._slots = [_Slot() for _ in range(setup.slots)]
        self._inbox: list[Job] = []
        self._deferred: list[Job] = []
        self._batch: _Batch | None = None
        self._stall_s = 0.0
        self._abandoned: dict[str, Job] = {}
        self._last_result = 0.0  # s, since when nobody was told anything
        self._step_s = [cost.step_s(n) for n in range(1, setup.slots + 1)]

    def slots(self) -> list[tuple[bool, int]]:
        """Of every slot whether it is at work, and the tokens it holds."""
        return [(s.job is not None, s.job.done if s.job else len(s.held)) for s in self._slots]

    def at_work(self) -> bool:
        """Whether anything is."""
        return self._batch is not None

    def submit(self, job: Job, now: float) -> None:
        """A request reaches the engine; it is looked at when the batch at work is done."""
        self._inbox.append(job)
        batch = self._batch
        if batch is None:
            self._begin(now)
        elif not batch.pieces:  # pure generation: only the step at work is waited for
            self._cut_short(batch, now)

    def _cut_short(self, batch: _Batch, now: float) -> None:
        batch.steps = min(batch.steps, max(1, math.ceil((now - batch.begun) / batch.step_s)))
        self.next_at = batch.ends

    def step(self) -> list[Output]:
        """Finish the batch at work and begin the next; call it at ``next_at``."""
        batch, now = self._batch, self.next_at
        assert batch is not None
        outputs = []
        if self._tells_somebody(batch):
            self._last_result = now
        for job in batch.generating:
            job.left -= batch.steps
            if job.left <= 0:
                outputs.append(Output(job, False, True))
        for job, n in batch.pieces:
            job.done += n
            first = job.done == len(job.row.prompt)
            job.left = job.output - 1
            outputs.append(Output(job, first, first and job.left <= 0))
        for output in outputs:
            if output.finished:
                self._release(output.job, now)
                self._last_result = now
        if self._abandoned:
            self._notice(now)
        self._begin(now)
        return outputs

    # ------------------------------------------------------------ clients that leave

    def abandon(self, id: str, now: float, reported: bool) -> None:
        """A client closed its connection. ``told``: the engine reports each batch of its prompt.

        llama-server notices it when it writes: a stream at its next token, a prompt that reports
        its progress at its next batch. A whole answer, and any other prompt, it looks after only
        when a second has passed without a result for anybody.
        """
        self._inbox = [job for job in self._inbox if job.id != id]
        self._deferred = [job for job in self._deferred if job.id != id]
        job = self._running(id)
        if job is not None:
            job.abandoned, job.reported = now, reported
            self._abandoned[id] = job
            batch = self._batch
            if batch is not None and not batch.pieces:  # it is looked at after each step
                self._cut_short(batch, now)

    def asked(self, now: float) -> None:
        """A question is answered, and that is a result: connections are looked at later."""
        self._last_result = now

    def generated(self, id: str) -> int:
        """Tokens of its answer so far."""
        job = self._running(id)
        return 0 if job is None or job.done < _length(job) else job.output - job.left

    def _running(self, id: str) -> Job | None:
        return next((s.job for s in self._slots if s.job is not None and s.job.id == id), None)

    def _tells_somebody(self, batch: _Batch) -> bool:
        return any(job.streams and job.abandoned is None for job in batch.generating)

    def _notice(self, now: float) -> None:
        for job in list(self._abandoned.values()):
            reading = job.done < _length(job)
            writes = job.streams and (job.reported if reading else True)
            if job.left <= 0 and not reading:
                del self._abandoned[job.id]  # it has ended
            elif writes or now >= self._noticed_at(job):
                del self._abandoned[job.id]
                self._release(job, now)

    def _noticed_at(self, job: Job) -> float:
        """When, unless somebody is told something until then."""
        return max(self._last_result, job.abandoned or 0.0) + _UNNOTICED_S

    # ------------------------------------------------------------ slots

    def _release(self, job: Job, now: float) -> None:
        slot = self._slots[job.slot]
        held = job.done if job.done < _length(job) else _length(job) + job.output - job.left - 1
        slot.held, slot.job, slot.released = job.row.full.first(held), None, now
        if self._deferred:
            self._inbox.insert(0, self._deferred.pop(0))

    def _launch(self, job: Job, now: float) -> None:
        if job.empties and job.pin is not None:
            self._slots[job.pin].held = ONE_TOKEN
            job.empties = False
            self._inbox.append(job)  # it comes while the next batch is at work
            return
        chosen = self._choose(job)
        if chosen is None:
            self._deferred.append(job)
            return
        index, save_first = chosen
        slot = self._slots[index]
        if save_first and self.setup.park_tokens:
            self._swap(slot, job.row.prompt)
        prompt = job.row.prompt
        job.slot = index
        job.cached = job.done = min(lcp(slot.held, prompt), len(prompt) - 1)
        job.begun = now
        self._stall_s += self.cost.prefill.c_s
        self.prefill_s += self.cost.prefill_s(job.cached, len(prompt))
        slot.job = job
        if self.setup.idle_snapshots:
            for other in self._slots:
                if other.job is None:
                    self._copied(self.ram.save(other.held))

    def _choose(self, job: Job) -> tuple[int, bool] | None:
        """The slot, and whether what it holds is to be saved. None: all are at work."""
        prompt = job.row.prompt
        if job.pin is not None and self._slots[job.pin].job is not None:
            raise EngineMisuseError(f"{job.id} is pinned to slot {job.pin}, which is at work")
        candidates = range(len(self._slots)) if job.pin is None else (job.pin,)
        best, common = -1, int(_SIMILARITY * len(prompt))
        for index in candidates:
            slot = self._slots[index]
            if slot.job is None and (shared := lcp(slot.held, prompt)) > common:
                best, common = index, shared
        if best >= 0:
            return best, common < _WORTH_SAVING * len(self._slots[best].held)
        if job.pin is not None:  # an empty slot is never filled from RAM: 0/0 is not below a half
            return job.pin, len(self._slots[job.pin].held) > 0
        idle = [(s.released, -i) for i, s in enumerate(self._slots) if s.job is None]
        return (-min(idle)[1], True) if idle else None

    def _swap(self, slot: _Slot, prompt: Tokens) -> None:
        self._copied(self.ram.save(slot.held))
        better = self.ram.load(slot.held, prompt)
        if better is not None:
            slot.held = better
            self._copied(len(better))

    def _copied(self, tokens: int) -> None:
        if tokens:
            seconds = tokens / self.cost.copy_tokens_per_s
            self._stall_s += seconds
            self.copy_s += seconds

    # ------------------------------------------------------------ batches

    def _begin(self, now: float) -> None:
        inbox, self._inbox = self._inbox, []
        for job in inbox:
            self._launch(job, now)
        jobs = [slot.job for slot in self._slots if slot.job is not None]
        if self._inbox and not jobs:  # nobody is waited for
            self._begin(now)
            return
        self._batch = self._plan(jobs, now + self._stall_s) if jobs else None
        self._stall_s = 0.0
        self.next_at = self._batch.ends if self._batch else _NEVER

    def _plan(self, jobs: list[Job], begun: float) -> _Batch:
        cost, crowded = self.cost, self.cost.crowded if len(jobs) > 1 else 1.0
        generating = [job for job in jobs if job.done == len(job.row.prompt)]
        looked_back_s = cost.decode_depth_s * sum(map(_depth, generating))
        pieces = self._pieces(jobs, self.setup.batch_tokens - len(generating))
        if not pieces:
            steps = 1 if self._inbox else min(job.left for job in generating)
            step_s = (self._step_s[len(generating) - 1] + looked_back_s) * crowded
            if self._abandoned:  # whether it is noticed is looked at
                left_s = min(map(self._noticed_at, self._abandoned.values())) - begun
                steps = min(steps, max(1, math.ceil(left_s / step_s)))
            return _Batch(begun, step_s, steps, [], generating)
        work_s = cost.prefill.a_s * len(generating)
        for job, n in pieces:
            work_s += cost.piece_s(job.done, job.done + n)
            if job.started < 0:
                job.started = begun - cost.prefill.c_s  # its start was part of the stall before
        if generating:  # no batch is faster than the generation in it
            work_s = max(work_s, self._step_s[len(generating) - 1])
        return _Batch(begun, (work_s + looked_back_s) * crowded, 1, pieces, generating)

    def _pieces(self, jobs: list[Job], room: int) -> list[tuple[Job, int]]:
        """The prompt tokens of the next batch, in the order of slots."""
        pieces = []
        for job in jobs:
            n = min(room, len(job.row.prompt) - job.done)
            if n > 0:
                pieces.append((job, n))
                room -= n
        return pieces


def _length(job: Job) -> int:
    return len(job.row.prompt)


def _depth(job: Job) -> int:
    """Tokens that the next one looks back on."""
    return len(job.row.prompt) + job.output - job.left
