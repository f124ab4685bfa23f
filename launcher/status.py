"""``slotwise status`` and ``slotwise top``: what the lanes page shows, in a terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slotwise.launcher import asking
from slotwise.launcher.asking import AskError
from slotwise.launcher.status_view import view

EXIT_FAULT = 1
_PATH = "/slotwise/status"
_WIDTH = 110  # where nobody tells how wide it may be
_SHORTEST_S, _LONGEST_S = 0.2, 60.0


def add_parsers(commands: Any) -> None:
    """Add both commands to ``commands``, what ``ArgumentParser.add_subparsers`` gave."""
    status = commands.add_parser(
        "status",
        help="show slots, who waits and why, and what was reused",
        description="Asks a running slotwise once. The lanes page at /slotwise/ shows the same.",
    )
    status.add_argument("--json", action="store_true", help="the whole answer, as it came")
    asking.add_address(status)
    top = commands.add_parser(
        "top",
        help="show the same again and again",
        description="Shows what `slotwise status` does until Ctrl-C.",
    )
    top.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="S",
        help="seconds between two looks (%(default)g)",
    )
    asking.add_address(top)


def run_status(args: argparse.Namespace) -> int:
    """Print the status once; returns the exit status."""
    try:
        found = ask(args)
    except AskError as error:
        return _fault(error)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    console.print(view(found, console.width))
    return 0


def run_top(args: argparse.Namespace, console: Console | None = None) -> int:
    """Show the status until Ctrl-C; returns the exit status. Only the first question must be
    answered: later it waits for an answer, and says so."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        return _fault(AskError("top needs a terminal; `slotwise status` prints the same once"))
    try:
        found = ask(args)
        first = view(found, console.width)
        with Live(first, console=console, screen=True, auto_refresh=False) as screen:
            screen.refresh()
            while True:
                time.sleep(args.interval)
                note = None
                try:
                    found = ask(args)
                except AskError as error:
                    note = Text(f"no answer, trying again: {error}", "bold red")
                now = view(found, console.width)
                screen.update(Group(note, now) if note else now, refresh=True)
    except AskError as error:
        return _fault(error)
    except KeyboardInterrupt:
        return 0


def ask(args: argparse.Namespace) -> dict[str, Any]:
    """The status document; raises :class:`AskError`."""
    found: dict[str, Any] = asking.get(args, _PATH)
    try:
        view(found)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise AskError(f"{args.url} answers, but not as slotwise does") from None
    return found


def _fault(error: AskError) -> int:
    print(f"slotwise: {error}", file=sys.stderr)
    return EXIT_FAULT


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _SHORTEST_S <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"expected {_SHORTEST_S:g} to {_LONGEST_S:g} s, got {text[:20]!r}"
        )
    return value
