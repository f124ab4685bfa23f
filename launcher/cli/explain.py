"""``slotwise explain``: asks a running slotwise why tokens were computed again, and prints it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slotwise.launcher.cli import client
from slotwise.launcher.cli.client import AskError

EXIT_FAULT = 1
_MOST_LISTED = 1000


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to ``commands``, what ``ArgumentParser.add_subparsers`` gave."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="say why prompt tokens were computed again",
        description="Asks a running slotwise about requests that ended. The first line of each "
        "names what cost most; the table says what became of each section of the prompt.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "id", nargs="?", metavar="REQUEST_ID", help="from the header X-Slotwise-Request-Id"
    )
    which.add_argument("--session", metavar="S", help="the last requests of this session")
    which.add_argument("--last", type=_count, metavar="N", help="the last N requests")
    client.add_address(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print what is asked for; returns the exit status."""
    try:
        found = ask(args)
    except AskError as error:
        print(f"slotwise: {error}", file=sys.stderr)
        return EXIT_FAULT
    show(found, Console(highlight=False))
    return 0


def ask(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The requests asked for, oldest first; raises :class:`AskError`."""
    path, query = "/slotwise/requests", {}
    if args.id is not None:
        path += "/" + quote(args.id, safe="")
    elif args.session is not None:
        query = {"session": args.session}
    else:
        query = {"last": str(args.last)}
    answer = client.get(args, path, query)
    found = [answer] if args.id is not None else answer.get("requests")
    if not isinstance(found, list) or not all("lines" in one for one in found):
        raise AskError(f"{args.url} answers, but not as slotwise does")
    if not found:
        raise AskError("no request of that session ended" if query else "no request ended")
    return found


def show(requests: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The culprit of each request, then a table of its prompt."""
    for index, request in enumerate(requests):
        if index:
            console.print()
        culprit, *rest = request["lines"]
        console.print(_text(culprit, "bold"), soft_wrap=True)
        for line in rest:
            console.print(_text(line, "dim"), soft_wrap=True)
        if request["sections"]:
            console.print(_table(request))


def _table(request: Mapping[str, Any]) -> Table:
    sections = request["sections"]
    causes = [cause for cause in request["tokens"] if cause != "cached"]
    table = Table("section", box=None, pad_edge=False)
    for heading in ("tokens", "cached", *causes, "lost s"):
        table.add_column(_text(heading), justify="right")
    for row in sections:
        counts = [row["tokens"], row["cached"], *(row["computed"].get(c, 0) for c in causes)]
        table.add_row(_text(row["section"]), *map(_number, counts), f"{row['lost_s']:.2f}")
    tokens = request["tokens"]
    counts = [request["prompt_tokens"], tokens.get("cached", 0), *(tokens[c] for c in causes)]
    table.add_section()
    table.add_row("total", *map(_number, counts), f"{request['lost_s']:.2f}", style="bold")
    return table


def _number(count: int) -> str:
    return f"{count:,}" if count else "-"


def _text(text: str, style: str = "") -> Text:
    """Never markup."""
    return Text(client.printable(text), style)


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= _MOST_LISTED:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected 1 to {_MOST_LISTED}, got {text[:20]!r}")
