"""What a profile means to the proxy: its values, put into the proxy's own words.

Like the command itself this may import every package: here the launcher's side and the proxy's
side of one thing stand next to each other. Values only, nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from slotwise.launcher.model import gguf_header
from slotwise.launcher.plan import plan
from slotwise.launcher.plan.plan import Machine
from slotwise.launcher.plan.starts import Planned
from slotwise.launcher.profile.launch import infill_flags
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import EMBEDDED, LaunchedServer
from slotwise.launcher.roles.roles import Role
from slotwise.policies import params
from slotwise.policies.admission import Growth, Limits
from slotwise.proxy.chat import kinds, normalize
from slotwise.proxy.core.memory import Member, MemoryRules
from slotwise.proxy.memory.meminfo import MemInfo
from slotwise.proxy.memory.watch import MemoryWatch
from slotwise.proxy.serving.served import ServedProfile
from slotwise.proxy.tokens.encoders import Source
from slotwise.proxy.tokens.fim import InfillFlags

WHEEL = "xllamacpp"
_COPIED_BYTES_S = 8e9  # of a state, to the RAM cache or back: what one core copies


def role(profile: Profile, by_name: Mapping[str, Planned]) -> Role:
    """A small model by its claim; a main one by what it takes at load by its plan."""
    if profile.role is None:
        planned = by_name.get(profile.name)
        return Role(profile.name, planned.plan.load_bytes if planned is not None else 0)
    small = profile.role
    return Role(
        profile.name,
        round(small.claim_gib * 2**30),
        small.order or 1,
        on_demand=small.on_demand,
        never=small.unload == "never",
    )


def served(profile: Profile, planned: Planned | None) -> ServedProfile:
    """A profile as the driver knows it; ``planned``: of an engine that slotwise starts."""
    windows, peak_gib = profile.server.windows, profile.memory.peak_gib
    grows = growth(profile, planned)
    return ServedProfile(
        name=profile.name,
        aliases=profile.aliases,
        params=_rules(profile, grows),
        tokenizer=_tokenizer_of(profile),
        normalize=normalize.from_mapping(profile.sections["normalize"])[0],
        kinds=kinds.from_mapping(profile.sections["kinds"])[0],
        cache_ram_mib=profile.server.cache_ram_mib,
        kv_unified=profile.server.kv_unified,
        windows=tuple(windows) if windows is not None else None,
        growth=grows,
        peak_bytes=round(peak_gib * 2**30) if peak_gib is not None else None,
        build=_build(profile),
    )


def _build(profile: Profile) -> str:
    """The wheel's version, where the engine is the one of a wheel: it does not know its own."""
    if not isinstance(profile.server, LaunchedServer) or profile.server.binary != EMBEDDED:
        return ""
    try:
        return f"{WHEEL} {metadata.version(WHEEL)}"
    except metadata.PackageNotFoundError:
        return ""


def _rules(profile: Profile, grows: Growth) -> params.Params:
    """The profile's rules; how many tokens the RAM cache holds and how fast it copies them follows
    from the model's sizes."""
    rules = params.from_mapping(profile.sections["policy"])[0]
    per_token = grows.kv_bytes_per_token
    if not per_token:
        return rules
    return replace(
        rules,
        cache_tokens=rules.cache_tokens or grows.cache_ram_bytes // per_token,
        copy_tps=_COPIED_BYTES_S / per_token,
    )


def growth(profile: Profile, planned: Planned | None) -> Growth:
    """What an engine can still take once it has loaded; its keys and values are not among it."""
    cache_ram_bytes = max(0, profile.server.cache_ram_mib) * 2**20
    if planned is None or planned.engine.model.shape is None:
        return Growth(cache_ram_bytes=cache_ram_bytes)
    shape, context = planned.engine.model.shape, planned.engine.context
    return Growth(
        checkpoint_bytes=plan.checkpoint_bytes(shape, context),
        checkpoints=planned.engine.checkpoints,
        cache_ram_bytes=cache_ram_bytes,
        kv_bytes_per_token=plan.token_bytes(shape, context),
    )


def limits(profiles: Sequence[Profile]) -> Limits:
    """One machine, so by one profile's word."""
    section = profiles[0].memory
    return Limits(
        section.floor_gib,
        section.hard_floor_gib,
        section.margin_gib,
        section.stale_s,
        section.hard_samples,
    )


def meminfo(profiles: Sequence[Profile]) -> MemInfo:
    """Where the machine's memory is read."""
    section = profiles[0].memory
    return MemInfo(Path(section.meminfo), section.cgroup, stale_s=section.stale_s)


def machine_of(profiles: Sequence[Profile]) -> Machine:
    """What there is to plan with, now."""
    told = meminfo(profiles).read()
    return Machine(
        total_bytes=told.total_bytes,
        available_bytes=told.available_bytes or 0,
        floor_bytes=limits(profiles).floor_bytes(told.total_bytes),
        source=f"limit of {told.limit}" if told.limit else profiles[0].memory.meminfo,
        problem=told.problem,
    )


def memory(profiles: Sequence[Profile], by_name: Mapping[str, Planned]) -> dict[str, Any]:
    """How the driver watches the machine's memory: its arguments for that."""
    section = profiles[0].memory
    if not section.enabled:
        return {}
    roles = [role(p, by_name) for p in profiles if isinstance(p.server, LaunchedServer)]
    members = tuple(Member(one.name, one.order, one.never) for one in roles)
    return {
        "memory": MemoryRules(limits(profiles), members),
        "watch": MemoryWatch(meminfo(profiles), section.sample_s),
    }


def _tokenizer_of(profile: Profile) -> Source:
    """What a local tokenizer can be made from; nothing of an attached server's model is known."""
    model = profile.model
    vocabulary = partial(gguf_header.read_vocabulary, model) if model is not None else None
    flags = InfillFlags()
    if isinstance(profile.server, LaunchedServer):
        flags = InfillFlags(**infill_flags(profile.server))
    return Source(vocabulary=vocabulary, tokenizer_json=profile.tokenizer, infill=flags)
