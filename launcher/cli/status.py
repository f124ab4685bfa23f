"""``slotwise status`` and ``slotwise top``: what the lanes page shows, in a terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slotwise.launcher.cli import client
from slotwise.launcher.cli.client import AskError, printable

_BAR = 24  # characters
_NARROW_BAR, _NARROW = 10, 108  # where the terminal has fewer columns
# part of a lane -> (character, style): told apart without colour, too
_PARTS = {
    "cached": ("█", "blue"),
    "computed": ("▓", "yellow"),
    "unread": ("░", "yellow"),
    "answer": ("▒", "magenta"),
}
_FREE = ("·", "dim")
_MOST_WAITING = 15  # lines; the rest is counted
_GIB = 2**30

Json = Mapping[str, Any]


def view(status: Json, width: int = 110) -> RenderableType:
    """Everything, the most telling first, for a terminal of so many columns."""
    bar = _BAR if width >= _NARROW else _NARROW_BAR
    parts: list[RenderableType] = [_summary(status)]
    for name, profile in status["profiles"].items():
        parts += _profile(name, profile, status["engines"], bar)
    parts += _reuse(status)
    parts += _memory(status.get("memory"))
    parts += _requests(status["requests"])
    return Group(*parts)


# ------------------------------------------------------------ the whole


def _summary(status: Json) -> Text:
    profiles = status["profiles"].values()
    hour = _hour(status)
    line = Text()
    line.append("slotwise ", "bold")
    line.append(time.strftime("%H:%M:%S", time.localtime(status["time"])), "dim")
    line.append(f"   running {sum(p['running'] for p in profiles)}", "bold")
    line.append(f" of {sum(p['max_running'] for p in profiles)}", "dim")
    line.append(f"   waiting {sum(len(p['waiting']) for p in profiles)}", "bold")
    line.append(f"   reuse, last hour {percent(hour['ratio'])}", "bold")
    line.append(f" of {percent(hour['bound'])}", "dim")
    memory = status.get("memory") or {}
    if memory.get("enabled") and memory.get("available_bytes") is not None:
        line.append(f"   memory {_gib(memory['available_bytes'])}", "bold")
        line.append(f" free, floor {_gib(memory['floor_bytes'])}", "dim")
    return line


def _hour(status: Json) -> dict[str, Any]:
    """The last hour of all profiles together."""
    hours = [profile["last_hour"] for profile in status["profiles"].values()]
    told = sum(hour["reported_tokens"] for hour in hours)
    return {
        "ratio": sum(hour["cached_tokens"] for hour in hours) / told if told else None,
        "bound": sum(hour["bound_tokens"] for hour in hours) / told if told else None,
        "tokens": sum(hour["prompt_tokens"] for hour in hours),
        "avoided_s": sum(hour["avoided_s"] for hour in hours),
        "lost_s": sum(hour["lost_s"] for hour in hours),
    }


# ------------------------------------------------------------ one profile


def _profile(name: str, profile: Json, engines: Json, bar: int) -> list[RenderableType]:
    own = {n: engine for n, engine in engines.items() if engine["profile"] == name}
    told = f"{profile['running']} of {profile['max_running']} running"
    parts: list[RenderableType] = [Text(), _heading(name, told)]
    for engine, life in own.items():
        if life["state"] != "up":
            said = f"engine {engine} is {life['state']}: {life['text']}"
            parts.append(_text(said, "bold red"))
        elif life["pins"] is False:
            parts.append(_text(f"engine {engine} serves without pins: {life['text']}", "yellow"))
    if not own:
        parts.append(Text("no engine has been started", "bold red"))
    slots = [(engine, slot) for engine, e in profile["engines"].items() for slot in e["slots"]]
    if slots:
        parts.append(_lanes(slots, bar, several=len(profile["engines"]) > 1))
    parts.append(_waiting(profile["waiting"]))
    return parts


def _lanes(slots: Sequence[tuple[str, Json]], bar: int, several: bool) -> Table:
    table = _table("slot", "conversation", "window")
    for heading in ("full", "cached", "computed", "answer"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state, for how long")
    for engine, slot in slots:
        label = f"{engine}/{slot['id_slot']}" if several else str(slot["id_slot"])
        table.add_row(
            _text(label),
            _text(f"{slot['kind']} {slot['session']}" if slot["prompt"] else ""),
            _lane(slot, bar),
            percent(slot["resident"] / slot["window"]),
            *(f"{slot[part]:,}" if slot[part] else "-" for part in ("cached", "computed")),
            f"{slot['answer']:,}" if slot["answer"] else "-",
            _text(
                f"{slot['text']}, {ago(slot['since_s'])}",
                "green" if slot["state"] == "running" else "",
            ),
        )
    return table


def _lane(slot: Json, bar: int) -> Text:
    unread = 0
    if slot["state"] == "running":
        unread = max(0, slot["prompt"] - slot["cached"] - slot["computed"])
    counts = {"unread": unread, **{part: slot[part] for part in ("cached", "computed", "answer")}}
    parts = [(*look, counts[part] / slot["window"]) for part, look in _PARTS.items()]
    return _bar(parts, bar)


def _waiting(waiting: Sequence[Json]) -> RenderableType:
    if not waiting:
        return Text("nobody waits", "dim")
    table = _table("waits", "conversation")
    table.add_column("tokens", justify="right")
    table.add_column("for", justify="right")
    table.add_column("why")
    table.add_column("key", no_wrap=True)
    for one in waiting[:_MOST_WAITING]:
        table.add_row(
            str(one["ahead"] + 1),
            _text(f"{one['kind']} {one['session']}"),
            f"{one['prompt_tokens']:,}",
            ago(one["waited_s"]),
            _text(one["text"]),
            _text(one["key"], "dim"),
        )
    more = len(waiting) - _MOST_WAITING
    if more > 0:
        table.add_row("", Text(f"and {more} more", "dim"))
    return table


# ------------------------------------------------------------ sums and what ended


def _reuse(status: Json) -> list[RenderableType]:
    hour = _hour(status)
    causes: dict[str, int] = {}
    for profile in status["profiles"].values():
        for cause in profile["last_hour"]["causes"]:
            causes[cause["text"]] = causes.get(cause["text"], 0) + cause["tokens"]
    saved = f"{span(hour['avoided_s'])} of prefill saved, {span(hour['lost_s'])} lost"
    table = _table("", "")
    table.show_header = False
    for text, tokens in causes.items():
        share = tokens / hour["tokens"]
        style = "blue" if text == next(iter(causes)) else "yellow"
        bar = _bar([("█", style, share)])
        table.add_row(bar, percent(share), f"{tokens:,}", _text(text))
    return [Text(), _heading("prompt tokens of the last hour", saved), table] if causes else []


def _memory(memory: Json | None) -> list[RenderableType]:
    if not memory or not memory.get("enabled"):
        return []
    parts: list[RenderableType] = [Text(), _heading("memory", "")]
    if memory.get("available_bytes") is None:
        said = memory.get("problem") or "how much there is was not read yet"
        return [*parts, _text(str(said), "bold red")]
    total = memory["total_bytes"]
    table = _table("", "")
    table.show_header = False
    for name, n_bytes in (*memory["parts"].items(), ("available", memory["available_bytes"])):
        style = "green" if name in ("available", "free_lists") else "blue"
        said = "free_lists: freed, not yet available" if name == "free_lists" else name
        table.add_row(_bar([("█", style, n_bytes / total)]), _gib(n_bytes), _text(said))
    limits = (
        f"floor {_gib(memory['floor_bytes'])}, hard floor {_gib(memory['hard_floor_bytes'])}, "
        f"reserved {_gib(memory['reserved_bytes'])}"
    )
    return [*parts, table, Text(limits, "dim")]


def _requests(requests: Sequence[Json]) -> list[RenderableType]:
    if not requests:
        return []
    table = _table("ended", "conversation", "slot", "rule")
    table.expand = True  # what is left of the line is for the words, and no more
    for heading in ("tokens", "cached", "TTFT"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what became of it", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in requests:
        cached, n = one["cached_tokens"], one["prompt_tokens"]
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(one["time"])),
            _text(f"{one['kind']} {one['session']}"),
            _text(one["slot"].rpartition("/")[2]),
            _text(one["rule"]),
            f"{n:,}",
            percent(cached / n if cached is not None and n else None),
            "-" if one["ttft_s"] is None else f"{one['ttft_s']:.2f} s",
            _text(one["text"], "red" if one["failure"] else ""),
        )
    return [Text(), _heading("last requests", "slotwise explain --last N tells more"), table]


# ------------------------------------------------------------ the small parts


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _heading(text: str, note: str) -> Text:
    line = _text(text, "bold")
    return line.append(f"  {printable(note)}", "not bold dim")


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def _bar(parts: Sequence[tuple[str, str, float]], width: int = _BAR) -> Text:
    """``(character, style, share)`` of each part; what is there is seen, however little."""
    bar = Text()
    left = width
    for character, style, share in parts:
        n = min(left, max(round(share * width), 1 if share > 0 else 0))
        bar.append(character * n, style)
        left -= n
    return bar.append(_FREE[0] * left, _FREE[1])


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def ago(seconds: float) -> str:
    """A length of time, as coarse as it is long."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86_400)} d"


def span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.1f} GiB"


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
    client.add_address(status)
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
    client.add_address(top)


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
    found: dict[str, Any] = client.get(args, _PATH)
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
