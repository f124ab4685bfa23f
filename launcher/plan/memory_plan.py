"""The memory plan of a start: every engine of slotwise against this machine, in words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slotwise.launcher.plan import fitting, starts
from slotwise.launcher.plan.fitting import Change, Fit, Headroom, Judgement, verdict
from slotwise.launcher.plan.plan import GIB, Machine, Part, Plan, in_gib
from slotwise.launcher.plan.starts import PlanError, Planned, planned
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import LaunchedServer, RoleSection

_ASK_LIMIT_S = 5.0
_ASK = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
_NAME_WIDTH = 34
_SIZE_WIDTH = 11


def of_plan(plan: Plan, growth_bytes: int | None = None) -> list[str]:
    """The parts of one plan; ``growth_bytes``: its engine runs, and may still take that."""
    lines = [f"{plan.name}: {in_gib(plan.peak_bytes)} at most"]
    lines += [_line(part) for part in plan.parts if not part.grows]
    lines.append(_row("at load", plan.computed_load_bytes))
    if plan.measured is not None:
        how = f"measured: {plan.measured.how}, start of {plan.measured.when}"
        lines.append(_row("at load, the last time", plan.load_bytes, how))
        if plan.untouched_bytes:
            text = "compute buffers are used in full by the first long prompt"
            lines.append(_row("reserved, not used by then", plan.untouched_bytes, text))
    lines += [_line(part) for part in plan.parts if part.grows]
    source = "declared: memory.peak_gib" if plan.declared_peak_bytes is not None else ""
    lines.append(_row("at most", plan.peak_bytes, source))
    if growth_bytes is not None:
        lines.append(
            "  it runs already: what it took at load is gone from what is available, "
            f"up to {in_gib(growth_bytes)} can still be added"
        )
    lines += [f"  note: {note}" for note in plan.notes]
    return lines


def of_machine(headroom: Headroom, total_bytes: int, source: str) -> str:
    """What there is to plan with."""
    text = (
        f"memory: {in_gib(headroom.available_bytes)} of {in_gib(total_bytes)} available "
        f"({source}), {in_gib(headroom.floor_bytes)} stay free (floor)"
    )
    if headroom.growth_bytes:
        text += f", {in_gib(headroom.growth_bytes)} may still be taken by what runs"
    return f"{text}: {in_gib(headroom.room_bytes)} to use"


def of_judgement(judgement: Judgement) -> str:
    """The verdict in one line."""
    needed, spare = in_gib(judgement.needed_bytes), in_gib(abs(judgement.spare_bytes))
    if judgement.fit is Fit.FITS:
        return f"fits: needs {needed}, {spare} are left above the floor"
    if judgement.fit is Fit.APART:
        return f"not judged: needs {needed}, but the GPU has memory of its own"
    if judgement.fit is Fit.TIGHT:
        return f"tight: needs {needed}, {spare} more than there is; small enough to start anyway"
    if judgement.spare_bytes >= 0:
        return f"does not fit: needs {needed} and then more, without a limit"
    return f"does not fit: needs {needed}, {spare} more than there is"


def of_changes(changes: Sequence[Change]) -> list[str]:
    """What would fit, and by how much; the risks of it."""
    lines = []
    for change in changes:
        spare = in_gib(abs(change.spare_bytes))
        found = f"fits, {spare} left" if change.spare_bytes >= 0 else f"still {spare} short"
        lines.append(f"  {change.text}: {found}")
        if change.caution:
            lines.append(f"    ({change.caution})")
    return lines


def _line(part: Part) -> str:
    return _row(
        part.name,
        part.size_bytes,
        f"{part.source}: {part.detail}" if part.detail else part.source,
    )


def _row(name: str, size_bytes: int, source: str = "") -> str:
    row = f"  {name:<{_NAME_WIDTH}}{in_gib(size_bytes):>{_SIZE_WIDTH}}"
    return f"{row}  {source}" if source else row


_OURS = "/proc/meminfo"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a start would take, and whether it may."""

    fit: Fit
    text: str  # everything, for a reader
    summary: str  # one line
    planned: tuple[Planned, ...] = ()


def outcome(profiles: Sequence[Profile], state_dir: Path, told: Machine) -> Outcome:
    """Raises PlanError, one line."""
    memory = profiles[0].memory  # one machine, so by one profile's word
    launched = [one for one in profiles if isinstance(one.server, LaunchedServer)]
    if not memory.enabled or not launched:
        why = "memory.enabled: false" if launched else "no engine is started here"
        return Outcome(Fit.FITS, f"memory: not planned ({why})", f"not planned ({why})")
    if told.problem:
        raise PlanError(f"{told.problem} (without a plan: memory.enabled: false)")
    # Another machine's file is planned for as if it were that machine: nobody asks this one's GPU.
    own_mib = gpu_own_memory_mib() if memory.meminfo == _OURS else None
    made = tuple(planned(profile, state_dir, own_mib is not None) for profile in launched)
    mains = [one for one in made if one.profile.role is None]
    headroom = Headroom(
        available_bytes=told.available_bytes,
        floor_bytes=told.floor_bytes,
        growth_bytes=_growth(made, state_dir),
    )
    apart = own_mib is not None and any(one.engine.on_gpu for one in mains)
    to_start = [one.plan for one in mains if one.growth_bytes is None]
    judgement = fitting.judge(to_start, headroom, apart)
    words = of_judgement(judgement)
    blocks = [of_plan(one.plan, one.growth_bytes) for one in made]
    blocks.append([of_machine(headroom, told.total_bytes, told.source), words])
    if judgement.fit is Fit.TOO_BIG:
        blocks.append(_advice(mains, judgement))
    margin = round(memory.margin_gib * GIB)
    after = replace(
        headroom,
        available_bytes=told.available_bytes - sum(plan.load_bytes for plan in to_start),
        growth_bytes=headroom.growth_bytes + sum(plan.growth_bytes for plan in to_start),
        margin_bytes=margin,
    )
    blocks.append(_roles(made, after))
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return Outcome(judgement.fit, text, words, made)


def _roles(made: Sequence[Planned], headroom: Headroom) -> list[str]:
    """What each small model would find once the main ones run, in order; none runs already."""
    lines = []
    small = [one for one in made if one.profile.role is not None and one.growth_bytes is None]
    for one in sorted(small, key=lambda one: _role(one).order or 0):
        role = _role(one)
        claim = round(role.claim_gib * GIB)
        said = verdict(claim, headroom)
        text = f"  {role.order}. {role.name}: {said.text}"
        if one.plan.peak_bytes > claim:
            text += f"; its plan says {in_gib(one.plan.peak_bytes)}, more than claim_gib"
        lines.append(text)
        if said.fits and not role.on_demand:
            left = headroom.available_bytes - claim
            headroom = replace(headroom, available_bytes=left)
    return ["small models beside it, as they would be loaded:", *lines] if lines else []


def _role(one: Planned) -> RoleSection:
    assert one.profile.role is not None
    return one.profile.role


def _growth(made: Sequence[Planned], state_dir: Path) -> int:
    """What engines that run may still take: those of these profiles and their neighbours', once."""
    ours = {one.directory: one.growth_bytes or 0 for one in made}
    engines = state_dir.resolve() / "engines"
    others = [path for path in engines.iterdir() if path not in ours] if engines.is_dir() else []
    return sum(ours.values()) + sum(starts.growth_of_running(path) or 0 for path in others)


def _advice(made: Sequence[Planned], judgement: Judgement) -> list[str]:
    """What would help, for each engine that is to be started."""
    lines = []
    for one in made:
        if one.growth_bytes is not None:
            continue
        changes = fitting.changes(one.engine, judgement.spare_bytes)
        if changes:
            lines.append(f"what {one.plan.name} could do with less, one at a time:")
            lines += of_changes(changes)
    return lines or ["nothing in these profiles can be made smaller: the models are too big"]


def gpu_own_memory_mib() -> int | None:
    """MiB that a GPU has for itself; None: there is none, or it shares the machine's memory.

    On GB10 the tool answers [N/A]. No answer, or none in time, counts as none.
    """
    try:
        asked = subprocess.run(_ASK, capture_output=True, text=True, timeout=_ASK_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    sizes = [int(line) for line in asked.stdout.splitlines() if line.strip().isdecimal()]
    return sum(sizes) or None
