"""What a profile may say, field by field: type, default, limit.

The description of a field is the second half of every error about it ("expected ..."), so it
states type and limits. Checks that need more than one field, or the disk, are in profile.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slotwise.launcher.profile.engine_flags import CACHE_TYPES

EMBEDDED = "embedded"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"
NAME_RULE = "a name of 1 to 100 letters, digits and . _ : - that begins with a letter or digit"
MAX_SLOTS = 256  # llama.cpp's highest number of sequences
MIN_WINDOW = 256  # llama.cpp pads the window of a slot to this

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Whole = Annotated[int, Field(strict=True)]


def _word_of_switch(value: Any) -> Any:
    """YAML reads a bare on or off as true or false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LaunchedServer(_Section):
    """A llama-server that slotwise starts."""

    binary: str = Field(
        default=EMBEDDED,
        min_length=1,
        description="embedded, or the name or path of a llama-server",
    )
    model: str = Field(min_length=1, description="the path of a GGUF file, or embedded:NAME")
    parallel: Whole = Field(ge=1, le=MAX_SLOTS, description="a number of slots, 1 to 256")
    ctx_size: Whole = Field(
        ge=MIN_WINDOW,
        le=2**31 - 1,
        description="the tokens of all slots together, 256 or more",
    )
    kv_unified: bool = Field(default=False, description="true or false")
    windows: list[Annotated[int, Field(strict=True, ge=MIN_WINDOW)]] | None = Field(
        default=None,
        description="a list of tokens per slot, each 256 or more",
    )
    cache_ram_mib: Whole = Field(default=0, ge=-1, description="MiB, 0 for none, -1 for no limit")
    cache_reuse: Whole = Field(default=0, ge=0, description="a number of tokens, 0 for off")
    ctx_checkpoints: Whole = Field(
        default=32, ge=0, le=1024, description="a number per slot, 0 to 1024"
    )
    swa_full: bool = Field(default=False, description="true or false")
    batch_size: Whole = Field(  # the engine begins with two tokens
        default=512, ge=2, le=65536, description="a number of tokens, 2 to 65536"
    )
    ubatch_size: Whole | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="a number of tokens, 1 to 65536",
    )
    threads: Whole | None = Field(
        default=None, ge=1, le=512, description="a number of threads, 1 to 512"
    )
    gpu_layers: Whole | Literal["auto", "all"] | None = Field(
        default=None,
        description="a number of layers, auto or all",
    )
    flash_attn: Annotated[Literal["on", "off", "auto"] | None, BeforeValidator(_word_of_switch)] = (
        Field(default=None, description="on, off or auto")
    )
    cache_type_k: CacheType | None = Field(default=None, description=f"one of {CACHE_TYPES}")
    cache_type_v: CacheType | None = Field(default=None, description=f"one of {CACHE_TYPES}")
    mmproj: str | None = Field(default=None, min_length=1, description="the path of a GGUF file")
    draft_model: str | None = Field(
        default=None, min_length=1, description="the path of a GGUF file"
    )
    extra_args: list[str] = Field(default_factory=list, description="a list of texts")
    env: dict[str, str] = Field(default_factory=dict, description="texts by name")
    start_timeout_s: float = Field(default=600, gt=0, le=86400, description="seconds, up to 86400")


class AttachedServer(_Section):
    """A llama-server that somebody else runs, for slotwise alone."""

    attach: str = Field(
        pattern=r"^https?://[^/?#\s]+/?$",
        description="a URL like http://127.0.0.1:8080",
    )
    parallel: Whole = Field(ge=1, le=MAX_SLOTS, description="its number of slots, 1 to 256")
    kv_unified: bool = Field(description="true or false, as the server was started")
    cache_ram_mib: Whole = Field(ge=-1, description="its --cache-ram in MiB, 0 for none")
    windows: list[Annotated[int, Field(strict=True, ge=MIN_WINDOW)]] | None = Field(
        default=None,
        description="a list of tokens per slot, each 256 or more",
    )
    api_key_file: str | None = Field(
        default=None,
        min_length=1,
        description="the path of a file that holds the server's API key",
    )


Gib = Annotated[float, Field(gt=0, le=65536, allow_inf_nan=False)]


class MemorySection(_Section):
    """By which figures the machine's memory is planned and watched; one machine, one set of them.

    None: ``floor_gib`` is the smaller of 15 GiB and 12 % of MemTotal, ``hard_floor_gib`` two
    thirds of the floor, ``peak_gib`` what the plan says.
    """

    enabled: bool = Field(default=True, description="true or false")
    meminfo: str = Field(
        default="/proc/meminfo", min_length=1, description="the path of a file like /proc/meminfo"
    )
    cgroup: str = Field(
        default="auto", min_length=1, description="auto, off, or the path of a cgroup's directory"
    )
    floor_gib: Gib | None = Field(default=None, description="GiB, above 0")
    hard_floor_gib: Gib | None = Field(default=None, description="GiB, above 0")
    margin_gib: float = Field(default=4, ge=0, le=65536, description="GiB, 0 or more")
    peak_gib: Gib | None = Field(default=None, description="GiB, above 0")
    sample_s: float = Field(default=0.5, ge=0.05, le=60, description="seconds, 0.05 to 60")
    stale_s: float = Field(default=2, ge=0.1, le=600, description="seconds, 0.1 to 600")
    hard_samples: Whole = Field(default=3, ge=1, le=1000, description="a number, 1 to 1000")
    reload_s: float = Field(default=60, ge=0.1, le=86400, description="seconds, 0.1 to 86400")


class RoleSection(_Section):
    """A small model beside the main one, with a profile of its own."""

    name: Name = Field(description=NAME_RULE)
    profile: str = Field(min_length=1, description="the path or name of a profile")
    claim_gib: Gib = Field(description="GiB that it takes at most, above 0")
    order: Whole | None = Field(
        default=None, ge=1, le=1000, description="a number, 1 to 1000: the first is loaded first"
    )
    on_demand: bool = Field(default=False, description="true or false")
    unload: Literal["auto", "never"] = Field(default="auto", description="auto or never")


class ProfileFile(_Section):
    """The top level of a profile; ``server`` is validated by what kind it is."""

    name: Name = Field(description=NAME_RULE)
    aliases: list[Name] = Field(default_factory=list, description=f"a list; each {NAME_RULE}")
    server: dict[str, Any] = Field(description="a section with model or with attach")
    policy: dict[str, Any] = Field(default_factory=dict, description="a section")
    memory: dict[str, Any] = Field(default_factory=dict, description="a section")
    roles: list[dict[str, Any]] = Field(
        default_factory=list, description="a list of small models, each a section"
    )
    normalize: dict[str, Any] = Field(default_factory=dict, description="a section")
    kinds: dict[str, Any] = Field(default_factory=dict, description="a section")
    explain: dict[str, Any] = Field(default_factory=dict, description="a section")
    tokenizer: str | None = Field(
        default=None, min_length=1, description="the path of a tokenizer.json"
    )
    api_keys_file: str | None = Field(
        default=None,
        min_length=1,
        description="the path of a YAML file with a key by name",
    )
