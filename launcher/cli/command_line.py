"""The arguments of the ``slotwise`` command, and its answers in words."""

from __future__ import annotations

import argparse
import ipaddress
import os
import shlex
import socket
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

from slotwise.launcher.cli import configs, explain, status
from slotwise.launcher.profile.launch import engine_dir, launch_line
from slotwise.launcher.profile.profile import Profile, brought
from slotwise.launcher.profile.settings import AttachedServer

EXIT_FAULT = 1
EXIT_USAGE = 2
LOG_LEVELS = ("debug", "info", "warning", "error")
HIGHEST_PORT = 65535
MEASURING = {
    "replay": "send a recorded workload to a server and say what it cost",
    "bench": "run the project's own measurements and write their tables",
    "simulate": "compare schedules on a recorded workload, in virtual time",
}
"""Commands of the ``bench`` extra: they take arguments of their own."""


def parser() -> argparse.ArgumentParser:
    """The parser; a wrong argument ends the program with status 2 and one line."""
    top = argparse.ArgumentParser(
        prog="slotwise",
        description="A scheduling proxy for llama.cpp's llama-server: "
        "every prompt goes to the slot that already holds most of it.",
        epilog="Start with: slotwise serve demo",
    )
    top.add_argument("--version", action="version", version=f"slotwise {version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the engines of these profiles and serve them",
        description="Starts the engine of each profile and serves all of them on one address. "
        "Prints 'slotwise ready on http://HOST:PORT' once every engine is ready; "
        "SIGTERM or Ctrl-C ends it after the running requests, a second one at once.",
    )
    _add_profiles(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    serve.add_argument(
        "--port", type=_port, default=8000, help="port, 0 for one of the system's (%(default)s)"
    )
    _add_state_dir(serve)
    serve.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="(%(default)s)")
    serve.add_argument(
        "--journal", type=Path, metavar="FILE", help="write every event and action to FILE"
    )
    serve.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use the models, e.g. http://localhost:3000; "
        "may be given several times; * for all of them, with keys only (none)",
    )
    serve.add_argument(
        "--ignore-plan",
        action="store_true",
        help="start engines that do not fit the machine's memory by the plan",
    )
    check = commands.add_parser(
        "check",
        help="say what is wrong with these profiles, or how they would run",
        description="Prints the launch line, the window of each slot and the memory plan, "
        "or every fault at once (exit status 2). Exit status 1: they do not fit the memory.",
    )
    _add_profiles(check)
    _add_state_dir(check)
    plan = commands.add_parser(
        "plan",
        help="say what the engines of these profiles take of the memory, part by part",
        description="Prints what each engine takes at load and at most, whether all of it fits "
        "what is available above the floor, and else what would. Starts nothing. "
        "Exit status 1: it does not fit.",
    )
    _add_profiles(plan)
    _add_state_dir(plan)
    explain.add_parser(commands)
    status.add_parsers(commands)
    configs.add_parser(commands)
    for name, what in MEASURING.items():
        commands.add_parser(name, help=what, add_help=False)
    return top


def _add_profiles(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "profiles",
        nargs="+",
        metavar="PROFILE",
        help=f"a YAML file, or the name of a profile that comes along: {', '.join(brought())}",
    )


def _add_state_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="engine logs, slot files, measured sizes "
        "($XDG_STATE_HOME/slotwise or ~/.local/state/slotwise)",
    )


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= HIGHEST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected 0 to {HIGHEST_PORT}, got {text!r}")


def version() -> str:
    """The installed version; a checkout that is not installed has none."""
    try:
        return metadata.version("slotwise")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def default_state_dir() -> Path:
    """Where engine logs and slot files go."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "slotwise"


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect; raises OSError for an address that is none."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(address[4][0]).is_loopback for address in found)


def url_of(listening: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def describe(served: Profile) -> str:
    """How a profile would run, for ``slotwise check``."""
    server = served.server
    lines = [f"{', '.join(served.names)} ({served.path})"]
    if isinstance(server, AttachedServer):
        lines.append(f"  attached: {server.attach}, {server.parallel} slots")
    else:
        line = launch_line(served, engine_dir(default_state_dir(), served.name))
        if line[0] == sys.executable:
            line[0] = "python"
        lines.append(f"  launch line: {shlex.join(line)}")
    sizes = Counter(served.windows)
    windows = [f"{count} slots x {size} tokens" for size, count in sizes.items()]
    if windows:
        shared = " of one shared buffer" if server.kv_unified and server.windows is None else ""
        lines.append(f"  windows: {', '.join(windows)}{shared}")
    lines.extend(f"  note: {note}" for note in served.notes)
    return "\n".join(lines)
