"""Checks of a profile's server that need several fields, or the disk.

Every check appends to one list of faults and goes on, so that the author sees all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slotwise.launcher import argv, engine_flags, gguf_header, gguf_tensors, models
from slotwise.launcher.faults import shown
from slotwise.launcher.paths import located, program
from slotwise.launcher.settings import EMBEDDED, MIN_WINDOW, AttachedServer, LaunchedServer


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
            told = argv.env_faults([name for name in env if isinstance(name, str)])
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
            for part in (files := gguf_tensors.parts(self.model)):
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
        refused = argv.extra_args_faults(extra_args)
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
