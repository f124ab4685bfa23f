"""A memory plan and its judgement as text for the reader: every part, its figure, its source."""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.launcher.fitting import Change, Fit, Judgement
from slotwise.launcher.plan import Part, Plan, in_gib
from slotwise.launcher.residency import Headroom

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
