"""``slotwise replay``: a recorded workload sent to a running server, and what it cost.

    slotwise replay tau_airline --url http://127.0.0.1:8000 --sessions 8

The server is slotwise, a bare llama-server, or anything else that speaks OpenAI's API and says how
much of a prompt it reused. TRACE is a recorded chat trace, a block trace or arrivals (prompts are
made up with the recorded lengths and common beginnings), slotwise's own journal, or one of the
made-up workloads ``titles`` and ``newsroom``. TTFT counts from when a call was due.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slotwise.bench.run import client, scripts, sender
from slotwise.bench.run.scripts import ORDERS, JournalReader, ScriptOptions
from slotwise.bench.run.sender import Chat, How, Outcome, ReplayError, Script, Sent
from slotwise.bench.trace import blocks
from slotwise.bench.trace.report import cell, count, percentile, seconds, url
from slotwise.policies.prefix import Tokens


def reuse(outcome: Outcome) -> float | None:
    """Cached over all prompt tokens as the engine reports them; None where it does not."""
    answers = [sent.answer for sent in outcome.calls if sent.answer is not None]
    if not any(answer.told_cached for answer in answers):
        return None
    prompt = sum(answer.prompt_tokens for answer in answers)
    return sum(answer.cached_tokens for answer in answers) / max(prompt, 1)


def sessions_s(outcome: Outcome) -> list[float]:
    """Of every session the seconds from when its first call was due to its last answer.

    Side jobs belong to none, and one-shots are no sessions. A session with a failed call is out.
    """
    calls: dict[str, list[Sent]] = {}
    for sent in outcome.calls:
        if not sent.step.side:
            calls.setdefault(sent.step.session, []).append(sent)
    return [
        max(sent.ended_s for sent in session) - min(sent.targeted_s for sent in session)
        for session in calls.values()
        if len(session) > 1 and all(sent.answer is not None for sent in session)
    ]


def row(outcome: Outcome) -> dict[str, Any]:
    """The figures of one replay; None where there is nothing to tell."""
    answered = [sent for sent in outcome.calls if sent.answer is not None]
    turns = [sent.ttft_s for sent in answered if not sent.step.side]
    side = [sent.ttft_s for sent in answered if sent.step.side]
    answers = [sent.answer for sent in answered if sent.answer is not None]
    whole = sessions_s(outcome)
    return {
        "calls": len(answered),
        "failed": len(outcome.failures),
        "prompt tokens": sum(answer.prompt_tokens for answer in answers),
        "reuse": reuse(outcome),
        "TTFT s": _mean(turns),
        "TTFT p50 s": percentile(turns, 50),
        "TTFT p95 s": percentile(turns, 95),
        "side TTFT s": _mean(side),
        "TPOT ms": _milli(_mean([tpot for sent in answered if (tpot := _tpot_s(sent))])),
        "E2E p50 s": percentile([sent.ended_s - sent.targeted_s for sent in answered], 50),
        "E2E p95 s": percentile([sent.ended_s - sent.targeted_s for sent in answered], 95),
        "session s": _mean(whole),
        "late p95 ms": _milli(percentile([s.started_s - s.targeted_s for s in answered], 95)),
        "wall s": outcome.wall_s,
    }


def _tpot_s(sent: Sent) -> float | None:
    """Seconds of each token behind the first."""
    answer = sent.answer
    if answer is None or answer.completion_tokens < 2 or not answer.ttft_s:
        return None
    return (answer.total_s - answer.ttft_s) / (answer.completion_tokens - 1)


def notes(outcome: Outcome) -> list[str]:
    """What a reader of the row has to know, in words."""
    found = []
    if outcome.cut_off:
        found.append("the time was over before the script")
    if outcome.skipped:
        found.append(f"{outcome.skipped} calls were not sent")
    reasons = Counter(sent.error for sent in outcome.failures)
    found += [f"{count} failed: {reason}" for reason, count in reasons.most_common(5)]
    if outcome.calls and reuse(outcome) is None:
        found.append("the server does not say how much of a prompt it reused")
    return found


def plain(outcome: Outcome) -> list[dict[str, Any]]:
    """Every call, in the order of their starts; seconds since the start of the replay."""
    return [_plain(sent) for sent in outcome.calls]


def _plain(sent: Sent) -> dict[str, Any]:
    reported: dict[str, Any] = {
        "id": sent.step.id,
        "session": sent.step.session,
        "side": sent.step.side,
        "targeted_s": sent.targeted_s,
        "started_s": sent.started_s,
        "ended_s": sent.ended_s,
    }
    answer = sent.answer
    if answer is None:
        return reported | {"error": sent.error}
    return reported | {
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens if answer.told_cached else None,
        "completion_tokens": answer.completion_tokens,
        "ttft_s": sent.ttft_s,
        "tpot_s": _tpot_s(sent),
        "prefill_s": answer.prefill_s,
        "decode_s": answer.decode_s,
        "slot": answer.slot,
        "rule": answer.rule,
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "SLOTWISE_API_KEY"


def add_parser(commands: Any) -> None:
    """Add the command to ``add_subparsers()`` of a command line."""
    parser = commands.add_parser("replay", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a file, a name in SLOTWISE_TRACES, titles or newsroom")
    add("--url", type=url, default=DEFAULT_URL, help="where the server listens (%(default)s)")
    add("--key", help=f"API key, where the server wants one (else from {KEY_VARIABLE})")
    add("--model", help="name of the model, where the server wants one")
    add("--sessions", type=count, default=4, help="live at a time (%(default)s)")
    orders = "; ".join(f"{name}: {what}" for name, what in ORDERS.items())
    add("--order", choices=ORDERS, default="shuffled", help=f"{orders} (%(default)s)")
    add("--seed", type=int, default=1, help="of order, pauses and guests (%(default)s)")
    add("--total", type=count, help="so many sessions in all (every recorded one)")
    add("--calls", type=count, default=40, help="of a session, the first so many (%(default)s)")
    add("--requests", type=count, default=1000, help="at recorded times, the first so many")
    add("--think", type=seconds, default=0.0, help="median of pauses not recorded, s (0)")
    add("--think-scale", type=seconds, default=1.0, help="all pauses times this (1)")
    add("--max-think", type=seconds, default=600.0, help="longest pause before it, s (600)")
    add("--spread", type=seconds, default=0.0, help="block traces: sessions start within, s (0)")
    add("--stretch", type=seconds, default=1.0, help="block traces: prompts times this (1)")
    add("--max-prompt", type=count, help="a session ends before a longer prompt (block traces)")
    add("--max-output", type=count, default=64, help="tokens of an answer (%(default)s)")
    add("--ignore-eos", action="store_true", help="answers as long as asked for (llama.cpp)")
    add("--session-header", metavar="NAME", help="send the session's name in this header")
    add("--pin", type=count, default=0, metavar="N", help="pin sessions to N slots (llama.cpp)")
    add("--call-limit", type=seconds, default=600.0, help="longest call, s (%(default)g)")
    add("--limit", type=seconds, default=3600.0, help="longest replay, s (%(default)g)")
    add("--max-failures", type=count, default=10, help="then it is given up (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every call to FILE")
    add("--write", type=Path, metavar="FILE", help="write the calls as a block trace, no text")


def run(options: argparse.Namespace, journal: JournalReader | None = None) -> int:
    """The command; returns its exit status. ``journal`` reads slotwise's own journal."""
    try:
        script = _script(options, journal)
        outcome = asyncio.run(_play(script, _how(options)))
        _show(outcome)
        if options.json is not None:
            options.json.write_bytes(orjson.dumps(plain(outcome)))
        if options.write is not None:
            options.write.write_bytes(asyncio.run(_as_block_trace(outcome, options)))
    except (ValueError, OSError, ReplayError, client.CallError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 1 if outcome.failures or outcome.cut_off else 0


def _script(options: argparse.Namespace, journal: JournalReader | None) -> Script:
    wanted = ScriptOptions(
        sessions=options.sessions,
        order=options.order,
        total=options.total,
        calls=options.calls,
        requests=options.requests,
        most_output=options.max_output,
        think_s=options.think,
        most_think_s=options.max_think,
        spread_s=options.spread,
        stretch=options.stretch,
        seed=options.seed,
    )
    script = scripts.read(options.trace, wanted, journal)
    if options.max_prompt:
        every, script = len(script), sender.fitting(script, options.max_prompt)
        if len(script) < every:
            left_out = every - len(script)
            print(f"replay: {left_out} calls left out by --max-prompt", file=sys.stderr)
    if not script.sessions:
        raise ValueError(f"{options.trace}: no calls to send")
    return script


def _how(options: argparse.Namespace) -> How:
    key = options.key or os.environ.get(KEY_VARIABLE)
    fields: dict[str, Any] = {"model": options.model} if options.model else {}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    return How(
        url=options.url,
        think_scale=options.think_scale,
        call_limit_s=options.call_limit,
        limit_s=options.limit,
        most_failures=options.max_failures,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        session_header=options.session_header,
        fields=fields,
        pin_slots=options.pin,
    )


async def _play(script: Script, how: How) -> Outcome:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("replay", total=len(script))
        return await sender.send(script, how, lambda: progress.advance(task))


def _show(outcome: Outcome) -> None:
    reported = row(outcome)
    width = max(map(len, reported))
    for name, value in reported.items():
        print(f"{name:<{width}}  {cell(value)}")
    for note in notes(outcome):
        print(f"note: {note}")


async def _as_block_trace(outcome: Outcome, options: argparse.Namespace) -> bytes:
    """The replay as Mooncake's lines; chats are tokenized by the server they were sent to."""
    how = _how(options)
    entries: list[blocks.BlockEntry] = []
    ended: dict[str, float] = {}
    async with client.connection() as connection:
        connection.headers.update(how.headers)
        for sent in outcome.calls:
            if sent.answer is None:
                continue
            name = sent.step.session
            entries.append(
                blocks.BlockEntry(
                    session=name,
                    started_s=sent.started_s,
                    delay_s=max(0.0, sent.started_s - ended.get(name, sent.started_s)),
                    prompt=await _tokens(connection, how.url, sent.step.prompt),
                    output_tokens=sent.answer.completion_tokens,
                )
            )
            ended[name] = sent.ended_s
    return b"".join(
        orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in blocks.lines(entries)
    )


async def _tokens(
    connection: httpx.AsyncClient, url: str, prompt: sender.Chat | sender.Ids
) -> Tokens:
    if isinstance(prompt, Chat):
        return await client.tokens(connection, url, prompt.call)
    return prompt.tokens
