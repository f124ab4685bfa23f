"""The stub engine's slots: llama-server's choice of slot, its reuse, its queue, at a chosen speed.

Each slot holds token ids. A job takes its slot until its last token, or until a while after its
client left; what was computed stays. The rules are llama-server's: a pin is taken modulo the
number of slots and waits for a busy slot; without one the best similarity wins, then the slot
released longest ago; one waiting job is tried per release, and goes to the back if it cannot run.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tests.stub_config import Config
from tests.stub_text import EOS, Vocabulary


@dataclass
class Job:
    """One generating request inside the engine. ``out`` carries what happens, in order:
    ("start", cached), ("progress", processed), ("token", id), ("final", finish), ("error", ...).
    """

    ids: list[int]
    pin: int
    n_predict: int  # -1: as long as the answer is
    log: dict[str, Any]
    cache_prompt: bool = True
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    out: asyncio.Queue[tuple[Any, ...]] = field(default_factory=asyncio.Queue)


@dataclass
class Slot:
    id: int
    ids: list[int] = field(default_factory=list)
    job: Job | None = None
    released: int = -1  # order of the last release; never used: -1
    id_task: int = -1
    working: asyncio.Task[None] | None = None


class Slots:
    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._slots = [Slot(i) for i in range(config.slots)]
        self._deferred: list[Job] = []
        self._releases = itertools.count()
        self._tasks = itertools.count()

    @property
    def window(self) -> int:
        """Tokens one slot can hold."""
        config = self._config
        return config.ctx if config.kv_unified else config.ctx // config.slots

    def submit(self, job: Job) -> None:
        """Run it now or when its turn comes. A pin on a busy slot is noted as a violation."""
        pinned_to = self._slots[job.pin % len(self._slots)] if job.pin != -1 else None
        job.log["violation"] = pinned_to is not None and pinned_to.job is not None
        job.log["deferred"] = not self._try(job)
        if job.log["deferred"]:
            self._deferred.append(job)

    def leave(self, job: Job) -> None:
        """Its client is gone: forget it while it waits, else its slot notices."""
        job.gone.set()
        if job in self._deferred:
            self._deferred.remove(job)

    def erase(self, id_slot: int) -> int:
        """Empty a slot; the number of tokens it held."""
        slot = self._slots[id_slot % len(self._slots)]
        n, slot.ids = len(slot.ids), []
        return n

    def states(self) -> list[dict[str, Any]]:
        """The ``/slots`` answer: token fields only once a slot has run a task."""
        states = []
        for slot in self._slots:
            state: dict[str, Any] = {
                "id": slot.id,
                "n_ctx": self.window,
                "speculative": False,
                "is_processing": slot.job is not None,
            }
            if slot.id_task >= 0:
                state |= {"id_task": slot.id_task, "n_prompt_tokens": len(slot.ids)}
                state |= {"n_prompt_tokens_processed": 0, "n_prompt_tokens_cache": 0}
                state["params"] = {"n_predict": -1}
                state["next_token"] = [{"has_next_token": slot.job is not None, "n_decoded": 0}]
            states.append(state)
        return states

    # ------------------------------------------------------------ choice

    def _try(self, job: Job) -> bool:
        slot = self._choose(job)
        if slot is None or slot.job is not None:
            return False
        slot.job, slot.id_task = job, next(self._tasks)
        slot.working = asyncio.get_running_loop().create_task(self._run(slot, job))
        return True

    def _choose(self, job: Job) -> Slot | None:
        if job.pin != -1 and not self._config.own_choice:
            off = 1 if self._config.ignore_pins else 0
            return self._slots[(job.pin + off) % len(self._slots)]
        idle = [slot for slot in self._slots if slot.job is None]
        similarity = {slot.id: common(slot.ids, job.ids) / max(1, len(job.ids)) for slot in idle}
        best = max(idle, key=lambda slot: (similarity[slot.id], -slot.id), default=None)
        threshold = self._config.slot_prompt_similarity
        if best is not None and threshold and similarity[best.id] > threshold:
            return best
        oldest = min(idle, key=lambda slot: (slot.released, -slot.id), default=None)
        if oldest is not None:
            print(
                f"slot get_availabl: id {oldest.id} | selected slot by LRU, t_last = 1", flush=True
            )
        return oldest

    def _release(self, slot: Slot) -> None:
        slot.job, slot.released = None, next(self._releases)
        if not self._deferred:
            return
        meant = [job for job in self._deferred if job.pin == slot.id]
        job = meant[0] if meant else self._deferred[0]
        self._deferred.remove(job)
        if not self._try(job):
            self._deferred.append(job)

    # ------------------------------------------------------------ work

    async def _run(self, slot: Slot, job: Job) -> None:
        job.log |= {"slot": slot.id, "started": time.monotonic()}
        try:
            ending = await self._work(slot, job)
            if job.gone.is_set() and self._config.hangup_busy_s:
                await asyncio.sleep(self._config.hangup_busy_s)
        finally:
            job.log["released"] = time.monotonic()
            self._release(slot)
        # the slot is free before anyone can see the ending, as in llama-server
        job.out.put_nowait(ending)

    async def _work(self, slot: Slot, job: Job) -> tuple[Any, ...]:
        if len(job.ids) >= self.window:
            return ("error", 400, len(job.ids), self.window)
        reused = 0 if self._config.lose_kv or not job.cache_prompt else common(slot.ids, job.ids)
        cached = max(0, min(reused, len(job.ids) - 1))
        slot.ids = job.ids[:cached]
        job.log["cached"] = cached
        job.out.put_nowait(("start", cached, slot.id))
        while len(slot.ids) < len(job.ids):
            step = job.ids[len(slot.ids) :][: self._config.batch]
            if await self._pause(job, len(step), self._config.prefill_tps):
                return ("final", "abandoned")
            slot.ids = slot.ids + step
            job.out.put_nowait(("progress", len(slot.ids)))
        return await self._generate(slot, job)

    async def _generate(self, slot: Slot, job: Job) -> tuple[Any, ...]:
        """A token is in the slot only once the next one was computed from it."""
        seed = crc32(array("I", job.ids).tobytes())
        last: int | None = None
        for n in range(self._config.answer_tokens):
            if n == self._config.stall_after_tokens:
                await job.gone.wait()
            if await self._pause(job, 1, self._config.decode_tps):
                return ("final", "abandoned")
            slot.ids += [] if last is None else [last]
            last = self._vocabulary.id(f" w{crc32(bytes([n % 256]), seed) % 4096:03x}")
            job.out.put_nowait(("token", last))
            if n + 1 == job.n_predict or len(slot.ids) + 1 >= self.window:
                return ("final", "length")
        slot.ids += [] if last is None else [last]
        job.out.put_nowait(("token", self._vocabulary.id(EOS)))
        return ("final", "stop")

    @staticmethod
    async def _pause(job: Job, n: int, per_second: float) -> bool:
        """Take the time of ``n`` tokens; True as soon as the client is gone."""
        if not per_second:
            await asyncio.sleep(0)
            return job.gone.is_set()
        try:
            await asyncio.wait_for(job.gone.wait(), n / per_second)
        except TimeoutError:
            return False
        return True


def common(a: Iterable[int], b: Iterable[int]) -> int:
    """Length of the longest common prefix."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
