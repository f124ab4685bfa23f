"""The flags of llama-server: those the embedded engine takes, those a profile may not pass.

Every engine process of ours loads this file: it imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USAGE = "usage: python -m slotwise.launcher.process.embedded -m MODEL.gguf [llama-server flags]"

# The settings that llama-server sets itself where the command line does not.
AUTO_SLOTS = 4
DEFAULT_PORT = 8080
MINIMUM_CTX_IS_FULL = 2**32 - 1
ON, OFF, AUTO = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0"), ("auto", "-1")


class FlagError(ValueError):
    """A command line that llama-server would refuse; the text is one line."""


def _bool(value: str) -> bool:
    if value in ON or value in OFF:
        return value in ON
    raise ValueError("expected on or off")


def _flash_attn(value: str) -> str:
    for name, spellings in (("ENABLED", ON), ("DISABLED", OFF), ("AUTO", AUTO)):
        if value in spellings:
            return name
    raise ValueError("expected on, off or auto")


def _gpu_layers(value: str) -> int:
    named = {"auto": -1, "all": -2}
    return named[value] if value in named else int(value)


def _list(value: str) -> list[str]:
    items = [item.strip() for item in value.split(",")]
    if not any(items):
        raise ValueError("expected at least one value")
    return [item for item in items if item]


def _key_file(value: str) -> list[str]:
    try:
        lines = Path(value).read_text("utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read the file: {error.strerror}") from error
    return [line for line in lines if line and not line.startswith("#")]


def _directory(value: str) -> str:
    if not Path(value).is_dir():
        raise ValueError("expected a directory")
    return value if value.endswith("/") else value + "/"


CACHE_TYPES = "f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1"


def _cache_type(value: str) -> str:
    if value not in CACHE_TYPES.split(", "):
        raise ValueError(f"expected one of {CACHE_TYPES}")
    return value.upper()


@dataclass(frozen=True, slots=True)
class _Flag:
    """Where the value of a flag goes: a dotted attribute of the engine's parameters."""

    target: str
    read: Callable[[str], Any]


# A flag that takes a value.
_VALUES: Mapping[tuple[str, ...], _Flag] = {
    ("-m", "--model"): _Flag("model.path", str),
    ("--host",): _Flag("hostnames", _list),
    ("--port",): _Flag("port", int),
    ("-np", "--parallel"): _Flag("n_parallel", int),
    ("-c", "--ctx-size"): _Flag("n_ctx", int),
    ("-cram", "--cache-ram"): _Flag("cache_ram_mib", int),
    ("--slot-save-path",): _Flag("slot_save_path", _directory),
    ("-sps", "--slot-prompt-similarity"): _Flag("slot_prompt_similarity", float),
    ("-b", "--batch-size"): _Flag("n_batch", int),
    ("-ub", "--ubatch-size"): _Flag("n_ubatch", int),
    ("-t", "--threads"): _Flag("cpuparams.n_threads", int),
    ("-tb", "--threads-batch"): _Flag("cpuparams_batch.n_threads", int),
    ("--threads-http",): _Flag("n_threads_http", int),
    ("-a", "--alias"): _Flag("model_alias", _list),
    ("--api-key",): _Flag("api_keys", _list),
    ("--api-key-file",): _Flag("api_keys", _key_file),
    ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"): _Flag("n_ctx_checkpoints", int),
    ("--cache-reuse",): _Flag("n_cache_reuse", int),
    ("-fit", "--fit"): _Flag("fit_params", _bool),
    ("-fa", "--flash-attn"): _Flag("flash_attn_type", _flash_attn),
    ("-ctk", "--cache-type-k"): _Flag("cache_type_k", _cache_type),
    ("-ctv", "--cache-type-v"): _Flag("cache_type_v", _cache_type),
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): _Flag("n_gpu_layers", _gpu_layers),
    ("-mm", "--mmproj"): _Flag("mmproj.path", str),
    ("-md", "--model-draft", "--spec-draft-model"): _Flag("speculative.draft.mparams.path", str),
    ("-lv", "--verbosity", "--log-verbosity"): _Flag("verbosity", int),
    ("-to", "--timeout"): _Flag("timeout", int),
    ("-s", "--seed"): _Flag("sampling.seed", int),
    ("--temp", "--temperature"): _Flag("sampling.temp", float),
    ("--top-p",): _Flag("sampling.top_p", float),
    ("-n", "--predict", "--n-predict"): _Flag("n_predict", int),
}

# A switch: (spellings that turn it on, spellings that turn it off).
_SWITCHES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kv_unified": (("-kvu", "--kv-unified"), ("-no-kvu", "--no-kv-unified")),
    "cache_idle_slots": (("--cache-idle-slots",), ("--no-cache-idle-slots",)),
    "swa_full": (("--swa-full",), ()),
    "endpoint_metrics": (("--metrics",), ()),
    "endpoint_slots": (("--slots",), ("--no-slots",)),
    "cont_batching": (("-cb", "--cont-batching"), ("-nocb", "--no-cont-batching")),
    "cache_prompt": (("--cache-prompt",), ("--no-cache-prompt",)),
    "warmup": (("--warmup",), ("--no-warmup",)),
    "use_jinja": (("--jinja",), ("--no-jinja",)),
}


def _by_spelling() -> dict[str, _Flag | tuple[str, bool]]:
    table: dict[str, _Flag | tuple[str, bool]] = {}
    for spellings, flag in _VALUES.items():
        table |= dict.fromkeys(spellings, flag)
    for target, (on, off) in _SWITCHES.items():
        table |= dict.fromkeys(on, (target, True)) | dict.fromkeys(off, (target, False))
    return table


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings by dotted attribute, from a command line without program name; raises FlagError.

    ``LLAMA_API_KEY`` is read as llama-server reads it, so that a key need not stand in the
    process list. The last of several values counts; API keys add up.
    """
    table = _by_spelling()
    given: dict[str, Any] = {}
    if environment.get("LLAMA_API_KEY"):
        given["api_keys"] = _list(environment["LLAMA_API_KEY"])
    rest = list(reversed(argv))
    while rest:
        spelling = rest.pop()
        name = spelling.replace("_", "-") if spelling.startswith("--") else spelling
        entry = table.get(name)
        if entry is None:
            raise FlagError(f"invalid argument: {spelling}")
        if isinstance(entry, tuple):
            given[entry[0]] = entry[1]
            continue
        if not rest:
            raise FlagError(f"expected value for argument {spelling}")
        _store(given, entry, spelling, rest.pop())
    return _with_defaults(given)


def _store(given: dict[str, Any], flag: _Flag, spelling: str, text: str) -> None:
    try:
        value = flag.read(text)
    except ValueError as error:
        told = str(error) if str(error).startswith(("expected", "cannot")) else "expected a number"
        raise FlagError(f"{spelling}: {told}, got {text!r}") from error
    if flag.target == "api_keys":
        value = given.get("api_keys", []) + value
    given[flag.target] = value


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """What llama-server adds to a command line before it starts."""
    values = dict(given)
    if "model.path" not in values:
        raise FlagError("-m: expected the path of a model; the embedded engine has no router mode")
    if values.get("n_parallel", -1) < 0:  # auto: four slots over one shared KV buffer
        values["n_parallel"], values["kv_unified"] = AUTO_SLOTS, True
    elif values["n_parallel"] == 0:
        raise FlagError("-np: expected -1 or at least 1, got '0'")
    if values.get("n_ctx") == 0:  # asked for by name: the whole context, never a fitted one
        values["fit_params_min_ctx"] = MINIMUM_CTX_IS_FULL
    values.setdefault("port", DEFAULT_PORT)
    values.setdefault("hostnames", ["127.0.0.1"])
    if "timeout" in values:
        values["timeout_read"] = values["timeout_write"] = values.pop("timeout")
    for threads in ("cpuparams.n_threads", "cpuparams_batch.n_threads"):
        if values.get(threads, 1) <= 0:  # the engine's own choice, as without the flag
            del values[threads]
    if "cpuparams.n_threads" in values:  # prompts are read by as many threads as texts are written
        values.setdefault("cpuparams_batch.n_threads", values["cpuparams.n_threads"])
    return values


# Spellings -> why a profile may not pass them by hand.
_REFUSED: Mapping[tuple[str, ...], str] = {
    ("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"): (
        "set server.model"
    ),
    ("-a", "--alias"): "set name and aliases",
    ("-np", "--parallel"): "set server.parallel",
    ("-c", "--ctx-size"): "set server.ctx_size",
    ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"): "set server.kv_unified",
    ("--kv-unified-per-slot",): "set server.windows",
    ("-cram", "--cache-ram"): "set server.cache_ram_mib",
    ("--cache-reuse",): "set server.cache_reuse",
    ("--swa-full",): "set server.swa_full",
    ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"): "set server.ctx_checkpoints",
    ("-b", "--batch-size"): "set server.batch_size",
    ("-ub", "--ubatch-size"): "set server.ubatch_size",
    ("-t", "--threads"): "set server.threads",
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): "set server.gpu_layers",
    ("-fa", "--flash-attn"): "set server.flash_attn",
    ("-ctk", "--cache-type-k"): "set server.cache_type_k",
    ("-ctv", "--cache-type-v"): "set server.cache_type_v",
    ("-mm", "--mmproj", "-mmu", "--mmproj-url"): "set server.mmproj",
    ("-md", "--model-draft", "--spec-draft-model"): "set server.draft_model",
    ("--cache-idle-slots", "--no-cache-idle-slots"): (
        "it decides whether idle slots are copied and emptied behind the scheduler's back"
    ),
    ("--no-cache-prompt",): "no prompt would be reused",
    ("-nocb", "--no-cont-batching"): "a prompt would wait until nothing is generated",
    ("-sps", "--slot-prompt-similarity"): "it sends pinned prompts through the RAM cache",
    ("-fit", "--fit", "-fitc", "--fit-ctx", "-fitt", "--fit-target"): (
        "the windows of the slots would shrink unasked"
    ),
    ("--context-shift",): "the engine would drop tokens that the scheduler counts on",
    ("--host", "--port", "--reuse-port"): "slotwise chooses where the engine listens",
    ("--api-key", "--api-key-file"): "slotwise gives the engine a key of its own",
    ("--api-prefix",): "slotwise calls the engine's paths without one",
    ("--ssl-key-file", "--ssl-cert-file"): "slotwise calls the engine without TLS, on loopback",
    ("--slot-save-path",): "slotwise keeps the slot files in its own state directory",
    ("--no-slots",): "slotwise asks /slots before it uses a slot again",
    ("--sleep-idle-seconds",): "a sleeping engine loses what its slots hold",
    ("--embedding", "--embeddings", "--rerank", "--reranking"): (
        "such requests empty the slot they land on"
    ),
    ("--lora-init-without-apply",): "exchanging adapters empties slots",
    ("--models-dir", "--models-preset", "--models-max"): "slotwise runs one model per engine",
}
_REFUSED_BY_SPELLING = {name: why for names, why in _REFUSED.items() for name in names}
REFUSED_ENV = ("LLAMA_ARG_", "LLAMA_API_KEY")


def extra_args_faults(extra_args: Sequence[str]) -> list[str]:
    """One line for every extra argument that the launch line must decide itself."""
    faults = []
    for position, given in enumerate(extra_args):
        spelling = given.split("=", 1)[0]
        if spelling.startswith("--"):  # the engine reads --ctx_size as --ctx-size
            spelling = spelling.replace("_", "-")
        why = _REFUSED_BY_SPELLING.get(spelling)
        if why:
            faults.append(f"extra_args[{position}]: {given!r} is refused: {why}")
    return faults


def env_faults(names: Sequence[str]) -> list[str]:
    """One line for every variable that would change the engine past its command line."""
    return [
        f"env.{name}: is refused: the launch line alone says how the engine runs"
        for name in names
        if name.startswith(REFUSED_ENV)
    ]
