"""What slots are worth: four shapes of load on the real engine, each beside its bound."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from slotwise.bench.run import replay, served
from slotwise.bench.run.scripts import Wanted, of_calls
from slotwise.bench.run.sender import Outcome, Script, Step
from slotwise.bench.run.served import Bench, Played
from slotwise.bench.trace import workload
from slotwise.bench.trace.report import markdown_table
from slotwise.bench.trace.trace import Call
from slotwise.policies.prefix import Tokens, lcp

SLOTS = 4
_FOLDER = re.compile(r"(?<= )/\S*/")
_ADDRESS = re.compile(r" --(host|port|api-key|slot-save-path) \S+")


def launches(played: Sequence[Played]) -> str:
    """How every arm was started."""
    lines = [f"- {one.arm.name}: `{_engine_line(one.launch_lines)}`" for one in played]
    return "\n".join(["Launch lines of the engines:", "", *lines])


def _engine_line(launch_lines: Sequence[str]) -> str:
    """The line that started the engine, without folders and address."""
    engine = next((line for line in launch_lines if " -m " in line and ".gguf" in line), "")
    return _ADDRESS.sub("", _FOLDER.sub("", engine))


def figures(outcome: Outcome) -> dict[str, Any]:
    """The columns that all tables have."""
    row = replay.row(outcome)
    return {
        "failed": row["failed"],
        "TTFT p50 s": row["TTFT p50 s"],
        "TTFT p95 s": row["TTFT p95 s"],
        "wall s": row["wall s"],
    }


# ---------------------------------------------------------------- newsroom


def newsroom(bench: Bench, quick: bool) -> str:
    """Stages of a production line: each call new, behind a preamble that all share."""
    calls = workload.newsroom(12 if quick else 66, head_words=2361, own_words=385)
    calls = [replace(call, max_tokens=322) for call in calls]
    script = of_calls(calls, Wanted(sessions=4, order="file", most_output=322))
    tokens = bench.tokens(script)
    arms = [
        bench.bare("bare -np 1", 1),
        bench.slotwise("slotwise, max_running 1", SLOTS, {"max_running": 1}),
        bench.bare("bare -np 4", SLOTS),
        bench.slotwise("slotwise, max_running 4", SLOTS, {"max_running": 4}),
    ]
    played = [bench.play(arm, script) for arm in arms]
    rows = []
    for one in played:
        reuse = replay.reuse(one.outcome) or 0.0
        bound = served.infinite(served.served_rows(one.outcome, tokens))
        found = {"arm": one.arm.name, "reuse": reuse, "infinite": bound, "of it": reuse / bound}
        rows.append(found | figures(one.outcome))
    prompt = sum(map(len, tokens.values()))
    output = sum(s.answer.completion_tokens for s in played[0].outcome.calls if s.answer)
    return (
        f"{len(script)} calls by four clients at once, {prompt:,} prompt tokens behind a preamble "
        f"of {_shared(tokens):,}, {output:,} generated ({prompt / output:.0f}:1). No RAM cache. "
        "`infinite`: what a cache that never forgets would have reused in the order served.\n\n"
        f"{markdown_table(rows)}\n\nEach further slot costs one cold read of the preamble.\n\n"
        f"{launches(played)}"
    )


def _shared(tokens: dict[str, Tokens]) -> int:
    first, second, *_ = tokens.values()
    return lcp(first, second)


# ---------------------------------------------------------------- two agents


def agents(bench: Bench, quick: bool) -> str:
    """Two sessions that grow, without a pause: together, and one after the other."""
    rounds, turns = (1, 6) if quick else (5, 20)
    calls = [c for name in "ab" for c in _agent(name, turns)]
    together = of_calls(calls, Wanted(sessions=2, order="file", most_output=64))
    in_turn = replace(together, live=1)
    tokens = bench.tokens(together)
    arms = {
        "slotwise": bench.slotwise("slotwise", SLOTS),
        "bare -np 4": bench.bare("bare -np 4", SLOTS),
        "bare -np 1": bench.bare("bare -np 1", 1),
    }
    played: dict[tuple[str, str], list[Played]] = {}
    for _ in range(rounds):
        for name, arm in arms.items():
            for how, script in (("in turn", in_turn), ("at once", together)):
                played.setdefault((name, how), []).append(bench.play(arm, script))
    rows = []
    for name in arms:
        walls = {h: [p.outcome.wall_s for p in played[name, h]] for h in ("in turn", "at once")}
        ratios = [b / a for a, b in zip(walls["in turn"], walls["at once"], strict=True)]
        last = played[name, "at once"][-1]
        bound = served.infinite(served.served_rows(last.outcome, tokens))
        cached = [
            min(served.reuse_of(p.outcome, _of(who)) for p in played[name, "at once"])
            for who in "ab"
        ]
        rows.append(
            {
                "arm": name,
                "in turn s": median(walls["in turn"]),
                "at once s": median(walls["at once"]),
                "at once / in turn": median(ratios),
                "least of the runs": min(ratios),
                "most": max(ratios),
                "cached a": cached[0],
                "cached b": cached[1],
                "infinite": bound,
                "least of it": min(cached) / bound,
            }
        )
    return (
        f"Two sessions of {turns} turns, {sum(map(len, tokens.values())):,} prompt tokens, 64 "
        f"generated each turn, no pauses, no RAM cache. {rounds} rounds, in each every arm on a "
        "fresh engine first in turn, then at once; medians. `cached`: the least of the rounds.\n\n"
        f"{markdown_table(rows)}\n\n{launches([runs[0] for runs in played.values()][::2])}"
    )


def _of(who: str) -> Any:
    return lambda step: step.session == who


def _agent(name: str, turns: int) -> list[Call]:
    head = workload.text(800, "the agent's rules and tools")
    calls = workload.conversation(name, turns, words_per_turn=150, answer_words=30, head=head)
    return [replace(call, max_tokens=64) for call in calls]


# ---------------------------------------------------------------- conversations and titles


def _titles(turns: int) -> Script:
    """Three conversations that grow by 600 tokens a turn, a title job of 300 after each turn."""
    moments = workload.conversations_with_titles(3, turns, 285, 135)
    wanted = Wanted(sessions=3, order="file", most_output=32)
    lanes: dict[str, list[Step]] = {}
    for turn, title in moments:
        (main,), (job,) = (of_calls([call], wanted).sessions[0] for call in (turn, title))
        lanes.setdefault(turn.session, []).extend((main, replace(job, side=True)))
    return Script(list(lanes.values()))


def _conversation_rows(played: Sequence[Played], tokens: dict[str, Tokens]) -> list[dict[str, Any]]:
    rows = []
    for one in played:
        reuse = served.reuse_of(one.outcome, lambda step: not step.side)
        bound = served.infinite(served.served_rows(_turns(one.outcome), tokens))
        row = {"arm": one.arm.name, "reuse": reuse, "infinite": bound, "of it": reuse / bound}
        whole = replay.row(one.outcome)
        rows.append(row | {"side TTFT s": whole["side TTFT s"]} | figures(one.outcome))
    return rows


def _turns(outcome: Outcome) -> Outcome:
    """The same without its side jobs."""
    return Outcome([sent for sent in outcome.calls if not sent.step.side])


def titles(bench: Bench, quick: bool) -> str:
    """Where the bare engine loses everything: a title job takes the slot used longest ago."""
    turns = 6 if quick else 20
    script = _titles(turns)
    tokens = bench.tokens(script)
    arms = [
        bench.bare("bare -np 4 --cache-ram 0", SLOTS),
        bench.session_pin("session-pin", SLOTS),
        bench.slotwise("slotwise", SLOTS),
        bench.slotwise("slotwise, max_running 4", SLOTS, {"max_running": 4}),
    ]
    played = [bench.play(arm, script) for arm in arms]
    prompt = sum(len(tokens[step.id]) for step in script.steps() if not step.side)
    return (
        f"Three conversations of {turns} turns at once, {prompt:,} prompt "
        "tokens, a title job after every turn; four slots, no RAM cache, "
        "no pauses. Reuse and bound are of the conversations' tokens.\n\n"
        f"{markdown_table(_conversation_rows(played, tokens))}\n\n{launches(played)}"
    )


# ---------------------------------------------------------------- the RAM cache


def ram_cache(bench: Bench, quick: bool) -> str:
    """The same conversations: with a RAM cache as large as they are, the bare engine does well."""
    turns = 4 if quick else 14
    script = _titles(turns)
    tokens = bench.tokens(script)
    longest = [max(len(tokens[step.id]) for step in lane) for lane in script.sessions]
    rows, played = [], []
    for mib in (0, 3, 6, 9, 12, 18, 32):
        ram = mib * 2**20 // served.KV_BYTES
        row: dict[str, Any] = {"RAM cache MiB": mib, "of the working set": ram / sum(longest)}
        for arm in (
            bench.bare(f"bare -np {SLOTS}", SLOTS, ram_tokens=ram),
            bench.slotwise("slotwise", SLOTS, ram_tokens=ram),
            bench.slotwise("slotwise, max_running 4", SLOTS, {"max_running": 4}, ram_tokens=ram),
        ):
            played.append(bench.play(arm, script))
            row[arm.name] = served.reuse_of(played[-1].outcome, lambda step: not step.side)
        rows.append(row)
    infinite = served.infinite(served.served_rows(_turns(played[-1].outcome), tokens))
    return (
        f"The workload of `titles`, {turns} turns; its conversations end at "
        f"{sum(longest):,} tokens in all. Reuse of the conversations' tokens; a cache that never "
        f"forgets: {infinite:.4f}.\n\n"
        f"{markdown_table(rows)}\n\n"
        "A RAM cache larger than what lives makes the bare engine as good. The regime that "
        "matters is the other one: one conversation of 100,000 tokens of a big model is 10 GB, "
        "and llama-server's cache is 8.\n\n"
        f"{launches(played[:3])}"
    )
