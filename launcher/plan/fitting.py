"""Whether plans fit the memory that is free, with what would fit where they do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from slotwise.launcher.plan import plan as planning
from slotwise.launcher.plan.plan import GIB, NO_LIMIT, CacheError, Engine, Plan


@dataclass(frozen=True, slots=True)
class Headroom:
    """The machine's memory as a newcomer finds it, all in bytes.

    ``growth_bytes``: what the engines that run may still take. ``margin_bytes``: what has to stay
    above the floor beside it.
    """

    available_bytes: int
    floor_bytes: int
    growth_bytes: int = 0
    margin_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """The most a newcomer may take; below 0: so much is missing already."""
        return self.available_bytes - self.growth_bytes - self.floor_bytes - self.margin_bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim fits; ``left_bytes`` would be available after it, all growth included."""

    fits: bool
    left_bytes: int
    text: str


def growth_to_come(peak_bytes: int, now_bytes: int) -> int:
    """What an engine may still take, of its declared peak and what it takes now."""
    return max(0, peak_bytes - now_bytes)


def verdict(claim_bytes: int, headroom: Headroom) -> Verdict:
    """Whether ``available - growth - claim >= floor + margin``, in words with these figures."""
    left = headroom.available_bytes - headroom.growth_bytes - claim_bytes
    wanted = headroom.floor_bytes + headroom.margin_bytes
    fits = left >= wanted
    sum_of = _gib(headroom.available_bytes) + " available"
    if headroom.growth_bytes:
        sum_of += f" - {_gib(headroom.growth_bytes)} growth still to come"
    sum_of += f" - {_gib(claim_bytes)} claim = {_gib(left)}"
    limit = f"floor {_gib(headroom.floor_bytes)}"
    if headroom.margin_bytes:
        limit += f" + margin {_gib(headroom.margin_bytes)} = {_gib(wanted)}"
    if fits:
        text = f"fits: {sum_of}, {_gib(left - wanted)} above {limit}"
    elif left >= headroom.floor_bytes:
        text = f"refused: {sum_of}, above the floor but {_gib(wanted - left)} under {limit}"
    else:
        text = f"refused: {sum_of}, {_gib(wanted - left)} under {limit}"
    return Verdict(fits, left, text + " (GiB)")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"


# What takes no more than this freezes no box: it is let through with a warning. So a small model
# on a machine that is short for a moment still starts; its requests wait at the gate.
SMALL_BYTES = GIB
WINDOW_STEP = 1024
SHORTEST_WINDOW = 4096  # a chat client's own preamble takes as much
FEWEST_CHECKPOINTS = 4  # the last turns of a conversation
QUANTIZED_RISKS = (
    "needs flash attention, costs some quality at long contexts and some speed, "
    "and no head size but a multiple of 32 takes it"
)


class Fit(Enum):
    """What a start may do with the memory there is."""

    FITS = "fits"
    TIGHT = "tight"  # does not, but is too small to do harm
    TOO_BIG = "does not fit"
    APART = "not judged"  # the GPU has memory of its own, which nothing here reads


@dataclass(frozen=True, slots=True)
class Judgement:
    """The plans of one start against the machine."""

    fit: Fit
    needed_bytes: int  # still to be taken by all of it
    spare_bytes: int  # above the floor after that; below 0: missing


def judge(plans: Sequence[Plan], headroom: Headroom, apart: bool = False) -> Judgement:
    """``headroom``: before any of them is started; what runs already is not among ``plans``.

    ``apart``: they compute on a GPU with memory of its own.
    """
    needed = sum(plan.peak_bytes for plan in plans)
    spare = headroom.room_bytes - needed
    if apart:
        return Judgement(Fit.APART, needed, spare)
    bounded = all(plan.bounded for plan in plans)
    if spare >= 0 and bounded:
        return Judgement(Fit.FITS, needed, spare)
    fit = Fit.TIGHT if needed <= SMALL_BYTES and bounded else Fit.TOO_BIG
    return Judgement(fit, needed, spare)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing an author can change, and what is then left above the floor (below 0: missing)."""

    text: str
    spare_bytes: int
    caution: str = ""


def changes(engine: Engine, spare_bytes: int) -> list[Change]:
    """What would help an engine that lacks ``-spare_bytes``: the mildest change of each kind.

    Where none of them suffices, the last one is several together. Reckoned from the header, not
    from a measured start: no other launch line was measured.
    """
    base = replace(engine, measured=None, declared_peak_bytes=None)
    kinds = (_smaller_cache, _fewer_checkpoints, _quantized, _fewer_slots, _shorter_windows)
    found = [found for kind in kinds if (found := _mildest(kind(base), base, spare_bytes))]
    if len(found) > 1 and all(change.spare_bytes < 0 for change in found):
        found.append(_together(base, spare_bytes))
    return found


def _together(base: Engine, spare_bytes: int) -> Change:
    """One kind after the other, each as far as needed."""
    engine, settings = base, dict[str, str]()
    for kind in (_smaller_cache, _fewer_checkpoints, _fewer_slots, _shorter_windows):
        step = _needed(kind(engine), base, spare_bytes)
        if step is not None:
            engine = step.engine
            settings |= step.settings
    gained = _peak(base) - _peak(engine)
    return Change(_told("together", settings), spare_bytes + gained)


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of one kind; the steps of a kind go from mild to drastic."""

    engine: Engine
    kind: str
    settings: dict[str, str]  # keys of the profile's server section
    caution: str = ""


def _told(kind: str, settings: dict[str, str]) -> str:
    return f"{kind}: {', '.join(f'{key}: {value}' for key, value in settings.items())}"


def _mildest(steps: Iterator[_Step], base: Engine, spare_bytes: int) -> Change | None:
    step = _needed(steps, base, spare_bytes)
    if step is None:
        return None
    spare = spare_bytes + _peak(base) - _peak(step.engine)
    return Change(_told(step.kind, step.settings), spare, step.caution)


def _needed(steps: Iterator[_Step], base: Engine, spare_bytes: int) -> _Step | None:
    """The first step that suffices, else the last one; None: none gains anything."""
    found = None
    had = _peak(base)
    for step in steps:
        try:
            gained = had - _peak(step.engine)
        except CacheError:  # this model cannot have such a cache
            break
        if gained > 0:
            found = step
            if spare_bytes + gained >= 0:
                break
    return found


def _peak(engine: Engine) -> int:
    return planning.make(engine).peak_bytes


def _smaller_cache(engine: Engine) -> Iterator[_Step]:
    size = engine.cache_ram_mib
    while size > 0 or size == NO_LIMIT:
        size = size // 2 if size >= 512 else 0
        settings = {"cache_ram_mib": str(size)}
        yield _Step(replace(engine, cache_ram_mib=size), "a smaller RAM cache", settings)


def _fewer_checkpoints(engine: Engine) -> Iterator[_Step]:
    count = engine.checkpoints
    while count > FEWEST_CHECKPOINTS:
        count = max(FEWEST_CHECKPOINTS, count // 2)
        yield _Step(
            replace(engine, checkpoints=count),
            "fewer checkpoints",
            {"ctx_checkpoints": str(count)},
            "an edit far back in a conversation is then read again from its start",
        )


def _quantized(engine: Engine) -> Iterator[_Step]:
    context = engine.context
    for kind in ("q8_0", "q4_0"):
        if kind in (context.type_k, context.type_v):
            return
        smaller = replace(context, type_k=kind, type_v=kind, flash_attn=True)
        yield _Step(
            replace(engine, context=smaller),
            "quantized keys and values",
            {"cache_type_k": kind, "cache_type_v": kind},
            QUANTIZED_RISKS,
        )


def _fewer_slots(engine: Engine) -> Iterator[_Step]:
    context = engine.context
    window = context.ctx_size // context.slots
    for slots in range(context.slots - 1, 0, -1):
        smaller = replace(context, slots=slots, ctx_size=window * slots)
        settings = {"parallel": str(slots), "ctx_size": str(window * slots)}
        yield _Step(replace(engine, context=smaller), "fewer slots", settings)


def _shorter_windows(engine: Engine) -> Iterator[_Step]:
    context = engine.context
    share = 1 if context.unified else context.slots
    longest = (context.ctx_size // share - 1) // WINDOW_STEP
    for step in range(longest, SHORTEST_WINDOW // WINDOW_STEP - 1, -1):
        size = step * WINDOW_STEP * share
        told = f"{size} ({size // share} a slot)" if share > 1 else str(size)
        smaller = replace(context, ctx_size=size)
        yield _Step(replace(engine, context=smaller), "shorter windows", {"ctx_size": told})
