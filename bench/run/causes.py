"""What became of every prompt token: slotwise's own account, held against the engine's answers.

Sessions of recorded traces are interleaved and their calls sent one at a time to slotwise in front
of a small engine with full attention. Of every request the account is then read back
(``GET /slotwise/requests``) and must hold: its causes add up to the prompt to the token, ``cached``
is what the engine reported in that very answer, and no token is blamed on the engine, which can
reuse whatever a slot holds. One request that breaks this ends the run with exit status 1.

    python -m slotwise.bench.run.causes tau_airline oasst --live 8 --slots 2,4,8 --calls 100
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import orjson
from rich.console import Console
from rich.progress import Progress

from slotwise.bench.run import client, engines
from slotwise.bench.run.client import Answer
from slotwise.bench.run.engines import Model, Server
from slotwise.bench.trace import workload
from slotwise.bench.trace.report import count, counts, markdown_table, parser_of
from slotwise.bench.trace.trace import Call, TraceError
from slotwise.policies.attribution import Cause

TRACES = (
    "tau_airline",
    "sweagent",
    "sweagent_elide5",
    "miniswe",
    "opendevin",
    "oasst",
    "cline",
    "openhands.packed",
)
CTX_TOKENS = 65536  # a slot's window: the longest of these prompts has 60,000
MAX_TOKENS = 8  # of each answer
MAX_CALLS = 1000  # as many records as slotwise keeps

_POLICY = {
    # the tiny model on one core: a big model's seconds would make requests wait
    "prefill_tps": 52_000,
    "decode_tps": 2000,
    # one call at a time: nothing gets better by waiting
    "keep": False,
}
_TABLE_CAUSES = tuple(c for c in Cause if c not in (Cause.CACHED, Cause.UNKNOWN))
Account = Mapping[str, Any]
"""One request as ``GET /slotwise/requests`` tells it."""


class ViolationError(Exception):
    """An account that does not agree with its answer; the text says which and how."""


def check(answer: Answer, account: Account) -> None:
    """One answer and its account; raises :class:`ViolationError`."""
    causes: dict[str, int] = account["tokens"]
    reported = f"{sum(causes.values()):,} tokens by cause ({causes})"
    if account["prompt_tokens"] != answer.prompt_tokens:
        counted = f"{account['prompt_tokens']:,} prompt tokens were counted"
        raise ViolationError(f"{counted}, the engine reports {answer.prompt_tokens:,}")
    if sum(causes.values()) != answer.prompt_tokens:
        raise ViolationError(f"{reported}, but the prompt has {answer.prompt_tokens:,}")
    if causes.get(Cause.CACHED, 0) != answer.cached_tokens:
        cached = f"{causes.get(Cause.CACHED, 0):,} tokens are told as cached"
        raise ViolationError(f"{cached}, the engine reports {answer.cached_tokens:,}")
    for cause in (Cause.ENGINE, Cause.UNKNOWN):
        if causes.get(cause):
            raise ViolationError(f"{causes[cause]:,} tokens have the cause {cause}: {causes}")
    if any(count < 0 for count in causes.values()):
        raise ViolationError(f"a cause has less than no tokens: {causes}")


def check_all(answers: Sequence[Answer], accounts: Sequence[Account], label: str) -> None:
    """All answers of one run in their order; the first violation names its request."""
    if len(answers) != len(accounts):
        raise ViolationError(f"{label}: {len(answers)} answers, {len(accounts)} accounts")
    for number, (answer, account) in enumerate(zip(answers, accounts, strict=True)):
        try:
            check(answer, account)
        except ViolationError as violation:
            where = f"{label}, call {number} ({account['id']})"
            said = " ".join(account["lines"])
            raise ViolationError(f"{where}: {violation}\n  {said}") from None


async def serve(
    server: Server, calls: Sequence[Call], progress: Progress, title: str
) -> tuple[list[Answer], list[Account]]:
    """Send the calls one after the other; their answers and slotwise's accounts of them."""
    answers: list[Answer] = []
    async with client.connection() as connection:
        for call in progress.track(calls, description=title):
            request = client.body(call, MAX_TOKENS)
            answers.append(await client.chat(connection, server.url, request))
        accounts = await _accounts(connection, server.url)
    return answers, accounts


async def _accounts(connection: httpx.AsyncClient, url: str) -> list[Account]:
    """Of all requests so far, the oldest first."""
    found = await connection.get(f"{url}/slotwise/requests", params={"last": MAX_CALLS})
    if found.status_code != httpx.codes.OK:
        raise client.CallError(f"/slotwise/requests: {found.status_code}: {found.text[:300]}")
    accounts: list[Account] = orjson.loads(found.content)["requests"]
    return accounts


def row(name: str, slots: int, accounts: Sequence[Account]) -> dict[str, Any]:
    """One run as a row: tokens, and the share of each cause in percent of the prompt tokens."""
    causes: Counter[str] = Counter()
    for account in accounts:
        causes.update(account["tokens"])
    prompt = max(sum(causes.values()), 1)
    shown: dict[str, Any] = {
        "trace": name,
        "slots": slots,
        "calls": len(accounts),
        "prompt tokens": sum(causes.values()),
        "cached": causes[Cause.CACHED],
    }
    shown |= {cause.value: _share(causes[cause], prompt) for cause in _TABLE_CAUSES}
    shown["reuse"] = causes[Cause.CACHED] / prompt
    shown["bound"] = sum(account["bound_tokens"] for account in accounts) / prompt
    return shown


def _share(tokens: int, of: int) -> str:
    return f"{tokens:,} ({100 * tokens / of:.1f} %)" if tokens else "0"


def measure(
    model: Model, names: Sequence[str], slot_counts: Sequence[int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every trace at every number of slots; raises :class:`ViolationError` at the first fault."""
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name in names:
            moments = workload.moments(name, options.live, options.seed)
            calls = [call for moment in moments for call in moment][: options.calls]
            for slots in slot_counts:
                title = f"{name}, {slots} slots"
                started = engines.slotwise(
                    model, slots, slots * options.ctx, 0, options.binary, _POLICY
                )
                with started as server:
                    answers, accounts = asyncio.run(serve(server, calls, progress, title))
                check_all(answers, accounts, title)
                rows.append(row(name, slots, accounts))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    options.calls = min(options.calls, MAX_CALLS)
    try:
        rows = measure(engines.tiny_model(), options.trace or TRACES, options.slots, options)
    except ViolationError as violation:
        print(f"slotwise.bench.run.causes: {violation}", file=sys.stderr)
        return 1
    except (TraceError, OSError, engines.ServerError, client.CallError) as error:
        print(f"slotwise.bench.run.causes: {error}", file=sys.stderr)
        return 2
    given = sys.argv[1:] if argv is None else argv
    print(markdown_table(rows))
    print(f"\n`{shlex.join(['python', '-m', 'slotwise.bench.run.causes', *given])}`")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("slotwise.bench.run.causes", __doc__)
    add = parser.add_argument
    add("trace", nargs="*", help=f"a trace file or its name (all of {', '.join(TRACES)})")
    add("--live", type=count, default=8, help="sessions live at a time (%(default)s)")
    add("--slots", type=counts, default=[2, 4, 8], help="slots of the engine (2,4,8)")
    add("--calls", type=count, default=100, help="the first so many (%(default)s, up to 1000)")
    add("--seed", type=int, default=1, help="of the order of calls (%(default)s)")
    add("--ctx", type=count, default=CTX_TOKENS, help="window of a slot, tokens (%(default)s)")
    add("--binary", help="a llama-server binary in place of the embedded engine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
