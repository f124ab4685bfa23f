"""Scripts on servers of their own: how an arm is started, what became of a script there, and how
far that is from the bounds.

Every arm has a fresh engine. Bounds are counted on the tokens of the engine's own template, in the
order in which the arm's requests were *served*: an order that a queue changed is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slotwise.bench.run import client, engines, sender
from slotwise.bench.run.engines import Model, Server
from slotwise.bench.run.sender import Chat, How, Outcome, Script, Step, plain
from slotwise.bench.sim import bounds
from slotwise.bench.trace.rows import Row, rows_of, total
from slotwise.policies.prefix import Tokens

KV_BYTES = 528  # of a token in a saved state of the tiny model: 512 and its bookkeeping
_PROFILE = Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml"
Policy = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServedArm:
    """One way to serve a script. ``slots``: of its engine, for the bounds."""

    name: str
    start: Callable[[], AbstractContextManager[Server]]
    slots: int
    ram_tokens: int = 0
    pin_slots: int = 0


@dataclass(slots=True)
class Played:
    """What an arm made of a script."""

    arm: ServedArm
    outcome: Outcome
    launch_lines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where arms are run: the model, the windows of its slots, and who watches."""

    model: Model
    ctx: int = 32768  # tokens of a slot's window
    binary: str | None = None
    console: Console = field(default_factory=lambda: Console(stderr=True))
    limit_s: float = 900.0  # of one script

    # ------------------------------------------------------------ arms

    def bare(self, name: str, slots: int, *flags: str, ram_tokens: int = 0) -> ServedArm:
        """llama-server as it is, with so many slots and a RAM cache of so many tokens."""
        line = ("-c", str(slots * self.ctx), "-np", str(slots), "--cache-ram", _mib(ram_tokens))
        return ServedArm(
            name,
            lambda: engines.bare(self.model, (*line, *flags), self.binary),
            slots,
            ram_tokens,
        )

    def session_pin(self, name: str, slots: int, ram_tokens: int = 0) -> ServedArm:
        """A bare engine whose clients keep each session on one slot."""
        flags = ("--no-cache-idle-slots",)
        return replace(self.bare(name, slots, *flags, ram_tokens=ram_tokens), pin_slots=slots)

    def slotwise(
        self, name: str, slots: int, policy: Policy | None = None, ram_tokens: int = 0
    ) -> ServedArm:
        """slotwise with the costs of the tiny model and the rest of the rules as they come."""
        rules = self.rules(policy, ram_tokens)
        ram_mib = int(_mib(ram_tokens))
        ctx = slots * self.ctx
        return ServedArm(
            name,
            lambda: engines.slotwise(self.model, slots, ctx, ram_mib, self.binary, rules),
            slots,
            ram_tokens,
        )

    def rules(self, policy: Policy | None, ram_tokens: int) -> dict[str, Any]:
        """The policy section of slotwise's profile."""
        return {**tiny_costs(), "cache_tokens": ram_tokens, **(policy or {})}

    # ------------------------------------------------------------ runs

    def play(self, arm: ServedArm, script: Script, **how: Any) -> Played:
        """The script on a fresh server; raises what ``sender.send`` and ``engines`` raise."""
        with self.progress() as progress, arm.start() as server:
            task = progress.add_task(arm.name, total=len(script))
            sent = How(server.url, pin_slots=arm.pin_slots, limit_s=self.limit_s, **how)
            outcome = asyncio.run(sender.send(script, sent, lambda: progress.advance(task)))
            reported = (
                f"{arm.name}: {outcome.wall_s:.0f} s, reuse {reuse_of(outcome, lambda _: True):.3f}"
            )
            self.console.print(reported, highlight=False, markup=False)
            return Played(arm, outcome, server.launch_lines)

    def tokens(self, script: Script) -> dict[str, Tokens]:
        """Of every step its prompt as the engine reads it."""
        arm = self.bare("tokens", 1)
        with self.progress() as progress, arm.start() as server:
            task = progress.add_task("tokens of the prompts", total=len(script))
            return asyncio.run(_tokens(server, script, lambda: progress.advance(task)))

    def progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        return Progress(
            *columns,
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )


def tiny_costs() -> dict[str, float]:
    """What a token costs the tiny model, as its profile says."""
    policy: dict[str, float] = yaml.safe_load(_PROFILE.read_text("utf-8"))["policy"]
    return {name: policy[name] for name in ("prefill_tps", "decode_tps")}


def _mib(tokens: int) -> str:
    return str(-(-tokens * KV_BYTES // 2**20))


def cached_tokens(ram_tokens: int) -> int:
    """What a RAM cache for so many tokens holds of the tiny model: its size is in whole MiB."""
    return int(_mib(ram_tokens)) * 2**20 // KV_BYTES


async def _tokens(server: Server, script: Script, done: Callable[[], None]) -> dict[str, Tokens]:
    found = {}
    async with client.connection() as connection:
        for step in script.steps():
            if isinstance(step.prompt, Chat):
                found[step.id] = await client.tokens(connection, server.url, step.prompt.call)
            else:
                tokens = step.prompt.tokens
                found[step.id] = plain(tokens) if step.prompt.made_up else tokens
            done()
    return found


# ---------------------------------------------------------------- bounds


def served_rows(outcome: Outcome, tokens: Mapping[str, Tokens]) -> list[Row]:
    """The prompts in the order of their first tokens; answers occur in no later prompt."""
    answered = [sent for sent in outcome.calls if sent.answer is not None]
    answered.sort(key=lambda sent: sent.targeted_s + sent.ttft_s)
    prompts = [tokens[sent.step.id] for sent in answered]
    return rows_of(prompts, [sent.step.session for sent in answered])


def infinite(rows: Sequence[Row]) -> float:
    """Share of the prompt tokens that a cache which never forgets would have served."""
    return bounds.infinite(rows) / max(total(rows), 1)


def best_use(rows: Sequence[Row], slots: int, ram_tokens: int) -> float:
    """The same for so many slots and so large a RAM cache."""
    if not ram_tokens:
        return bounds.slots(rows, slots) / max(total(rows), 1)
    room = ram_tokens + bounds.largest_residents(rows, slots)
    return bounds.park(rows, room) / max(total(rows), 1)


def reuse_of(outcome: Outcome, chosen: Callable[[Step], bool]) -> float:
    """Cached over all prompt tokens of some of the steps."""
    answers = [s.answer for s in outcome.calls if s.answer is not None and chosen(s.step)]
    prompt = sum(answer.prompt_tokens for answer in answers)
    return sum(answer.cached_tokens for answer in answers) / max(prompt, 1)
