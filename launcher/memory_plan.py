"""The memory plan of a start: every profile that slotwise starts, against this machine, in words.

Used by ``slotwise plan``, ``slotwise check`` and at the start of ``slotwise serve``. Several
profiles are one machine, and all main models have to fit together. Small models beside them
(roles) are loaded as far as there is room: what each of them would find is said, not required.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slotwise.launcher import fitting, machine, measured, plan_words
from slotwise.launcher.fitting import Fit, Judgement
from slotwise.launcher.machine import Machine
from slotwise.launcher.plan import GIB, in_gib
from slotwise.launcher.planned import PlanError, Planned, planned
from slotwise.launcher.profile import Profile
from slotwise.launcher.residency import Headroom, verdict
from slotwise.launcher.settings import LaunchedServer, RoleSection

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
    own_mib = machine.gpu_own_memory_mib() if memory.meminfo == _OURS else None
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
    words = plan_words.of_judgement(judgement)
    blocks = [plan_words.of_plan(one.plan, one.growth_bytes) for one in made]
    blocks.append([plan_words.of_machine(headroom, told.total_bytes, told.source), words])
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
    return sum(ours.values()) + sum(measured.growth_of_running(path) or 0 for path in others)


def _advice(made: Sequence[Planned], judgement: Judgement) -> list[str]:
    """What would help, for each engine that is to be started."""
    lines = []
    for one in made:
        if one.growth_bytes is not None:
            continue
        changes = fitting.changes(one.engine, judgement.spare_bytes)
        if changes:
            lines.append(f"what {one.plan.name} could do with less, one at a time:")
            lines += plan_words.of_changes(changes)
    return lines or ["nothing in these profiles can be made smaller: the models are too big"]
