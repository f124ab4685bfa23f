"""A YAML profile -> a checked Profile, or every fault in it at once, each with its path."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from slotwise.launcher.model import gguf_header, models
from slotwise.launcher.model.gguf_header import Header
from slotwise.launcher.model.models import located, program
from slotwise.launcher.profile import engine_flags
from slotwise.launcher.profile.settings import (
    EMBEDDED,
    MIN_WINDOW,
    AttachedServer,
    LaunchedServer,
    MemorySection,
    ProfileFile,
    RoleSection,
)

Model = TypeVar("Model", bound=BaseModel)
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


def validated(model: type[Model], data: object, path: str, faults: list[str]) -> Model | None:
    """The model of this data; None, and every fault appended, where it does not fit."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A union reports each of its members; the first stands for all.
        lines = [_line(model, path, dict(fault)) for fault in error.errors()]
        faults.extend(dict.fromkeys(lines))
        return None


def _line(model: type[BaseModel], path: str, fault: dict[str, Any]) -> str:
    location = fault["loc"]
    name = str(location[0]) if location else ""
    field = model.model_fields.get(name)
    where = ".".join(filter(None, [path, name]))
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key, expected one of {', '.join(model.model_fields)}"
    expected = field.description if field and field.description else str(fault["msg"])
    if fault["type"] == "missing":
        return f"{where}: expected {expected}, got nothing"
    for part in location[1:]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif field and str(field.annotation).startswith("dict"):
            where += f".{part}"
    return f"{where}: expected {expected}, got {shown(fault['input'])}"


def shown(value: object) -> str:
    """A value as the author may recognise it, in a line; a nest of YAML aliases stays small."""
    return _SHORT.repr(value)


_LARGEST_BYTES = 1_000_000


class YamlError(ValueError):
    """The file is missing, not YAML, or not a mapping; the text is one line."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: the first value would be dropped silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in this file; raises YamlError."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1).decode("utf-8")
        if len(text) > _LARGEST_BYTES:
            raise YamlError(f"expected at most {_LARGEST_BYTES} bytes of YAML")
        data = yaml.load(text, Loader=_Loader)
    except OSError as error:
        raise YamlError(f"cannot read the file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise YamlError("expected YAML in UTF-8") from error
    except yaml.YAMLError as error:
        raise YamlError(_told(error)) from error
    except RecursionError as error:
        raise YamlError("the file nests too deeply") from error
    if not isinstance(data, dict):
        raise YamlError(f"expected a mapping (key: value), got {type(data).__name__}")
    return data


def _told(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{where}{problem}"


def padded(window: int) -> int:
    """llama.cpp rounds the window of a slot up to a multiple of 256."""
    return -(-window // MIN_WINDOW) * MIN_WINDOW


@dataclass(slots=True)
class ServerChecks:
    """The checks, the faults and notes they give, and the files they found on the way."""

    directory: Path
    faults: list[str]
    notes: list[str] = field(default_factory=list)
    model: Path | None = None
    program: str | None = None
    header: gguf_header.Header | None = None
    files: dict[str, Path] = field(default_factory=dict)
    engine_key: str = field(default="", repr=False)

    def texts(self, section: Mapping[Any, Any]) -> None:
        """What can be told from single texts, even where another field of the section is wrong."""
        binary = section.get("binary", EMBEDDED)
        if binary == EMBEDDED and find_spec("xllamacpp") is None:
            missing = "not installed: pip install 'slotwise[embedded]'"
            self._fault("binary", "an engine that is installed", binary, missing)
        elif isinstance(binary, str) and binary != EMBEDDED:
            self._find_program(binary)
        if isinstance(section.get("model"), str):
            self._read_model(section["model"])
        for name in ("mmproj", "draft_model"):
            if isinstance(section.get(name), str):
                self._find_file(name, section[name])
        env = section.get("env")
        if isinstance(env, dict):
            told = engine_flags.env_faults([name for name in env if isinstance(name, str)])
            self.faults.extend(f"server.{fault}" for fault in told)
        extra_args = section.get("extra_args")
        if isinstance(extra_args, list):
            self._extra_args([str(given) for given in extra_args], binary)

    def launched(self, server: LaunchedServer) -> None:
        """What needs several valid fields."""
        ubatch, batch = server.ubatch_size, server.batch_size
        if batch < server.parallel:  # the engine would abort while it starts
            expected = f"a token for each slot, at least {server.parallel}"
            self._fault("batch_size", expected, batch)
        if ubatch is not None and ubatch > batch:
            self._fault("ubatch_size", f"at most batch_size, {batch}", ubatch)
        sliding_window = self.header.sliding_window if self.header else None
        # Moving cached keys is wrong for a sliding window, and the engine refuses it with images.
        if server.cache_reuse and server.mmproj is not None:
            self._fault("cache_reuse", "0 with an mmproj", server.cache_reuse)
        if server.cache_reuse and sliding_window:
            expected = f"0 for a model with a sliding window ({sliding_window} tokens)"
            self._fault("cache_reuse", expected, server.cache_reuse)
        if sliding_window and not server.swa_full:
            self.notes.append(
                f"the model has a sliding window of {sliding_window} tokens: without "
                "server.swa_full a prompt that changes in its middle is read again from its start"
            )
        self._ctx_size(server)
        self._windows(server, server.ctx_size)

    def attached(self, server: AttachedServer) -> None:
        """The windows, and the key of a server somebody else runs."""
        self._windows(server, None)
        if server.api_key_file is None:
            return
        try:
            path = located(server.api_key_file, self.directory)
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            self._fault("api_key_file", "a readable file", server.api_key_file, str(error))
            return
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            self._fault("api_key_file", "a file with a key", server.api_key_file, "no key in it")
        self.engine_key = keys[0] if keys else ""

    def _fault(self, name: str, expected: str, got: object, why: str = "") -> None:
        tail = f": {why}" if why else ""
        self.faults.append(f"server.{name}: expected {expected}, got {shown(got)}{tail}")

    def _read_model(self, given: str) -> None:
        try:
            self.model = models.resolve(given, self.directory)
            self.header = gguf_header.read(self.model)
            for part in (files := gguf_header.parts(self.model)):
                if not part.is_file():
                    raise models.ModelError(f"expected {len(files)} files, got no {part}")
                if part != self.model:
                    gguf_header.read(part)
        except models.ModelError as error:
            self.faults.append(f"server.model: {error}")
        except (gguf_header.HeaderError, OSError) as error:
            self._fault("model", "a GGUF file", given, str(error))

    def _find_program(self, given: str) -> None:
        self.program = program(given, self.directory)
        if self.program is None:
            is_file = located(given, self.directory).is_file()
            why = "the file is not executable" if is_file else "none found"
            self._fault("binary", "the name or path of a program", given, why)

    def _find_file(self, name: str, given: str) -> None:
        path = located(given, self.directory).resolve()
        try:
            if not path.is_file():
                raise FileNotFoundError("no such file")
            gguf_header.read(path)
            self.files[name] = path
        except (gguf_header.HeaderError, OSError) as error:
            self._fault(name, "the path of a GGUF file", given, str(error))

    def _extra_args(self, extra_args: Sequence[str], binary: object) -> None:
        refused = engine_flags.extra_args_faults(extra_args)
        self.faults.extend(f"server.{fault}" for fault in refused)
        if binary != EMBEDDED or refused:
            return
        try:  # the embedded engine knows fewer flags: found here, not in its log
            engine_flags.parse(["-m", "model", *extra_args], {})
        except engine_flags.FlagError as error:
            self.faults.append(f"server.extra_args: the embedded engine says: {error}")

    def _ctx_size(self, server: LaunchedServer) -> None:
        share = 1 if server.kv_unified else server.parallel
        longest = self.header.context_length if self.header else None
        if server.ctx_size < share * MIN_WINDOW:
            expected = f"at least {MIN_WINDOW} for each of {share} slots, {share * MIN_WINDOW}"
            self._fault("ctx_size", expected, server.ctx_size)
        elif longest and not server.kv_unified and padded(server.ctx_size // share) > longest:
            expected = f"at most {longest * share}, {longest} (the model's own) a slot"
            self._fault("ctx_size", expected, server.ctx_size)

    def _windows(self, server: LaunchedServer | AttachedServer, ctx_size: int | None) -> None:
        windows = server.windows
        if windows is None:
            return
        if not server.kv_unified:
            self._fault("windows", "none without kv_unified: all slots are equal", windows)
        elif len(windows) != server.parallel:
            self._fault("windows", f"{server.parallel} numbers, one a slot", windows)
        elif ctx_size is not None and sum(windows) > ctx_size:
            self._fault("windows", f"a sum of at most ctx_size, {ctx_size}", windows)


CONFIGS = Path(__file__).resolve().parents[2] / "configs"
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
