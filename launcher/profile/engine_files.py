"""Where the files of an engine are, and how it is called."""

from __future__ import annotations

from pathlib import Path

from slotwise.launcher.profile import argv
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import LaunchedServer


class UsageError(Exception):
    """Something the user can put right; one line, exit status 2."""


def launch_files(served: Profile, directory: Path) -> argv.LaunchFiles:
    """The files of a profile that slotwise starts, with its engine's directory."""
    assert served.model is not None
    return argv.LaunchFiles(served.model, directory / "slots", served.mmproj, served.draft_model)


def launch_line(served: Profile, directory: Path) -> list[str]:
    """How the engine of a profile that slotwise starts is called, the port left open."""
    assert isinstance(served.server, LaunchedServer)
    return argv.launch_argv(served.server, served.names, launch_files(served, directory), "PORT")


def engine_dir(state_dir: Path, name: str) -> Path:
    """The part of the state directory that belongs to one engine."""
    return state_dir.resolve() / "engines" / name
