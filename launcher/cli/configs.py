"""``slotwise configs``: the profiles, Prometheus rules and Grafana dashboards that come along."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from slotwise.launcher.profile.profile import CONFIGS, brought

_SUFFIXES = (".yaml", ".yml", ".json")


class ConfigsError(Exception):
    """They cannot be written there; one line."""


def add_parser(commands: Any) -> None:
    """``commands``: the subparsers of the ``slotwise`` command."""
    command = commands.add_parser(
        "configs",
        help="name the profiles that come along, or write them and the dashboards to a folder",
        description="Names the profiles that come along. With --write, copies them, the "
        "configuration and alerts for Prometheus, and the dashboards and provisioning for Grafana "
        "to a folder of yours. Files that are there already stay as they are.",
    )
    command.add_argument("--write", type=Path, metavar="DIR", help="copy all of it to DIR")


def run(given: argparse.Namespace) -> int:
    """Do what was asked; raises :class:`ConfigsError`."""
    if given.write is None:
        print("\n".join(brought()))
        return 0
    written, kept = write(given.write)
    for path in kept:
        print(f"{path}: is there already, and differs: left as it is")
    print(f"{len(written)} files written to {given.write}")
    print(f"Serve a profile:  slotwise serve {given.write / 'demo.yaml'}")
    print(f"Prometheus:       mount {given.write / 'prometheus'} at /etc/prometheus")
    print(f"Grafana:          mount {given.write / 'grafana'} at /etc/grafana/provisioning")
    return 0


def write(folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy all that is not there yet; what was written, and what differs and was left."""
    written, kept = [], []
    try:
        for source in sorted(CONFIGS.rglob("*")):
            if source.suffix not in _SUFFIXES:
                continue
            target = folder / source.relative_to(CONFIGS)
            content = source.read_bytes()
            if target.exists():
                if target.read_bytes() != content:
                    kept.append(target)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            written.append(target)
    except OSError as error:
        where = error.filename or folder
        raise ConfigsError(f"{where}: cannot be written: {error.strerror}") from error
    return written, kept
