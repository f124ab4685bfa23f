"""A YAML profile -> a checked Profile, or every fault in it at once, each with its path.

Three passes, so that one mistake does not hide the next: the shape of the file, the fields of its
sections, then what needs several fields or the disk. Nothing here starts or writes anything but a
model that slotwise brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slotwise.launcher.checks import ServerChecks, padded
from slotwise.launcher.faults import validated
from slotwise.launcher.gguf_header import Header
from slotwise.launcher.paths import located
from slotwise.launcher.settings import (
    AttachedServer,
    LaunchedServer,
    MemorySection,
    ProfileFile,
    RoleSection,
)
from slotwise.launcher.yaml_file import YamlError, read_mapping

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
SUFFIXES = (".yaml", ".yml")
SectionCheck = Callable[[Mapping[str, Any]], list[str]]
CHECKED_ELSEWHERE = ("policy", "normalize", "kinds", "explain")  # sections that others know


class ProfileError(ValueError):
    """Everything that is wrong with the given profiles, one line each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


@dataclass(frozen=True, slots=True)
class Profile:
    """One model, how it is served, and by which numbers its requests are placed."""

    name: str
    aliases: tuple[str, ...]
    server: LaunchedServer | AttachedServer
    sections: Mapping[str, Mapping[str, Any]]  # policy and the like, checked by their owners
    path: Path
    model: Path | None = None
    header: Header | None = field(default=None, repr=False)  # of the model
    mmproj: Path | None = None
    draft_model: Path | None = None
    tokenizer: Path | None = None
    memory: MemorySection = field(default_factory=MemorySection)
    api_keys: Mapping[str, str] = field(default_factory=dict)
    engine_key: str = field(default="", repr=False)
    notes: tuple[str, ...] = ()
    roles: tuple[RoleSection, ...] = ()  # the small models beside it
    role: RoleSection | None = None  # what it is beside another

    @property
    def names(self) -> tuple[str, ...]:
        """What a client may write as ``model``."""
        return (self.name, *self.aliases)

    @property
    def windows(self) -> list[int]:
        """Tokens per slot, as far as the profile says; empty for an attached server."""
        if self.server.windows is not None:
            return list(self.server.windows)
        if isinstance(self.server, AttachedServer):
            return []
        share = 1 if self.server.kv_unified else self.server.parallel
        return [padded(self.server.ctx_size // share)] * self.server.parallel


def load_all(given: Sequence[str], checks: Mapping[str, SectionCheck]) -> list[Profile]:
    """The profiles of these paths or names; raises ProfileError with the faults of all of them.

    ``checks``: by the name of a section, what says its faults.
    """
    faults: list[str] = []
    profiles: list[Profile] = []
    for text in given:
        found: list[str] = []
        path = locate(text)
        if not path.exists():
            found.append(f"no such profile: expected a YAML file, or one of {', '.join(brought())}")
            profile = None
        else:
            profile = _load(path, checks, found)
        if profile is not None:
            profiles += [profile, *role_profiles(profile, checks, found)]
        faults.extend(f"{path}: {fault}" for fault in found)
    faults.extend(_clashes(profiles))
    if faults:
        raise ProfileError(faults)
    return profiles


def role_profiles(
    main: Profile, checks: Mapping[str, SectionCheck], faults: list[str]
) -> list[Profile]:
    """The profiles of the small models beside a main one, each by its role's name, since two may
    share a profile."""
    found: list[Profile] = []
    for index, role in enumerate(main.roles):
        where = f"roles[{index}].profile"
        path = locate(role.profile, main.path.parent)
        if not path.is_file():
            faults.append(f"{where}: expected a YAML file or a name, got {role.profile!r}: no file")
            continue
        inner: list[str] = []
        profile = _load(path, checks, inner)
        faults.extend(f"{where}: {path}: {fault}" for fault in inner)
        if profile is None:
            continue
        if profile.roles:
            faults.append(f"{where}: {path}: roles: expected none beside another model")
        if isinstance(profile.server, AttachedServer):
            faults.append(f"{where}: {path}: server: expected a model that slotwise starts")
        found.append(
            replace(
                profile,
                name=role.name,
                aliases=tuple(name for name in profile.aliases if name != role.name),
                role=role.model_copy(update={"order": role.order or index + 1}),
            )
        )
    return found


def locate(given: str, directory: Path = Path()) -> Path:
    """A path as it is, from ``directory``; a bare name stands for a profile in configs/."""
    path = located(given, directory)
    is_path = path.suffix in SUFFIXES or "/" in given or path.exists()
    # A directory that happens to lie here and is called demo does not hide the profile.
    if is_path and not (path.is_dir() and given in brought()):
        return path
    return CONFIGS / f"{given}.yaml"


def brought() -> list[str]:
    """Names of the profiles that come along."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def _load(
    path: Path, section_checks: Mapping[str, SectionCheck], faults: list[str]
) -> Profile | None:
    """The profile, or None; every fault is appended."""
    try:
        data = read_mapping(path)
    except YamlError as error:
        faults.append(str(error))
        return None
    top = validated(ProfileFile, data, "", faults)
    section = data.get("server")
    checks = ServerChecks(path.parent, faults)
    server: LaunchedServer | AttachedServer | None = None
    if isinstance(section, dict) and "attach" in section:
        server = validated(AttachedServer, section, "server", faults)
        if server is not None:
            checks.attached(server)
    elif isinstance(section, dict):
        server = validated(LaunchedServer, section, "server", faults)
        checks.texts(section)
        if server is not None:
            checks.launched(server)
            if checks.program is not None:
                server = server.model_copy(update={"binary": checks.program})
    for name, check in section_checks.items():
        if isinstance(data.get(name), dict):
            faults.extend(check(data[name]))
    memory = _memory(data.get("memory", {}), path.parent, faults)
    roles = _roles(data.get("roles", []), faults)
    tokenizer = data.get("tokenizer")
    if isinstance(tokenizer, str) and not located(tokenizer, path.parent).is_file():
        faults.append(
            f"tokenizer: expected the path of a tokenizer.json, got {tokenizer!r}: no such file"
        )
    keys_file = data.get("api_keys_file")
    keys = _api_keys(located(keys_file, path.parent), faults) if isinstance(keys_file, str) else {}
    if faults or top is None or server is None or memory is None:
        return None
    return Profile(
        top.name,
        tuple(top.aliases),
        server,
        {name: getattr(top, name) for name in CHECKED_ELSEWHERE},
        path,
        model=checks.model,
        header=checks.header,
        mmproj=checks.files.get("mmproj"),
        draft_model=checks.files.get("draft_model"),
        memory=memory,
        api_keys=keys,
        engine_key=checks.engine_key,
        tokenizer=located(top.tokenizer, path.parent) if top.tokenizer else None,
        notes=tuple(checks.notes),
        roles=roles,
    )


def _roles(sections: object, faults: list[str]) -> tuple[RoleSection, ...]:
    """The small models that are described without a fault."""
    found: list[RoleSection] = []
    for index, section in enumerate(sections if isinstance(sections, list) else []):
        if isinstance(section, dict):  # else told as a fault of the file's top level
            role = validated(RoleSection, section, f"roles[{index}]", faults)
            found += [role] if role is not None else []
    return tuple(found)


def _memory(section: object, directory: Path, faults: list[str]) -> MemorySection | None:
    """The section with its paths made absolute; None, with the faults, where it does not fit."""
    if not isinstance(section, dict):
        return None  # told as a fault of the file's top level
    memory = validated(MemorySection, section, "memory", faults)
    if memory is None:
        return None
    if memory.floor_gib is not None and (memory.hard_floor_gib or 0) > memory.floor_gib:
        faults.append(
            f"memory.hard_floor_gib: expected at most floor_gib, {memory.floor_gib:g}, "
            f"got {memory.hard_floor_gib:g}"
        )
    if memory.stale_s < 2 * memory.sample_s:
        faults.append(
            f"memory.stale_s: expected at least twice sample_s, {2 * memory.sample_s:g}, "
            f"got {memory.stale_s:g}"
        )
    places = {"meminfo": str(located(memory.meminfo, directory))}
    if memory.cgroup not in ("auto", "off"):
        places["cgroup"] = str(located(memory.cgroup, directory))
    if "meminfo" in section and not Path(places["meminfo"]).is_file():
        faults.append(
            f"memory.meminfo: expected the path of a file like /proc/meminfo, "
            f"got {memory.meminfo!r}: no such file"
        )
    return memory.model_copy(update=places)


def _api_keys(path: Path, faults: list[str]) -> dict[str, str]:
    """Keys by name; empty, with the faults, where the file is not one."""
    try:
        data = read_mapping(path)
    except YamlError as error:
        faults.append(f"api_keys_file: {path}: {error}")
        return {}
    good = {n: k for n, k in data.items() if isinstance(k, str) and len(k) >= 8 and k.isprintable()}
    # A key is never shown, not even a wrong one.
    faults.extend(
        f"api_keys_file: {path}: {name}: expected a text of 8 or more characters"
        for name in data
        if name not in good
    )
    if not data:
        faults.append(f"api_keys_file: {path}: expected at least one 'name: key'")
    if len(set(good.values())) < len(good):
        faults.append(f"api_keys_file: {path}: expected a different key for every name")
    return {str(name): key for name, key in good.items()}


def _clashes(profiles: Sequence[Profile]) -> list[str]:
    """Names that would not say which profile is meant."""
    faults: list[str] = []
    owner: dict[str, Profile] = {}
    for profile in profiles:
        for name in profile.names:
            other = owner.setdefault(name, profile)
            if other is not profile or profile.names.count(name) > 1:
                faults.append(
                    f"{profile.path}: name or alias {name!r} is used twice, also in {other.path}"
                )
    return list(dict.fromkeys(faults))
