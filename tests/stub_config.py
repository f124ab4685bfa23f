"""What the stub engine can be told: its size, its speed, and each way it can misbehave.

Every field is a command line flag (``--prefill-tps 1000``) and, while it runs, a key of
``POST /stub/config``. llama-server's own flags that the launcher passes are understood or ignored.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

_LLAMA_SERVER = {
    "-np": "--slots",
    "--parallel": "--slots",
    "-c": "--ctx",
    "--ctx-size": "--ctx",
    "-a": "--alias",
    "-b": "--batch",
    "--batch-size": "--batch",
    "-sps": "--slot-prompt-similarity",
}


@dataclass
class Config:
    """Counts of ``-1`` and times of ``0`` mean never. Speeds of ``0`` mean at once."""

    # the engine
    slots: int = 4
    ctx: int = 32768  # tokens, all slots together
    kv_unified: bool = False  # every slot sees the whole ctx
    alias: str = "stub"
    api_key: str = ""
    batch: int = 512  # tokens per prefill step
    slot_prompt_similarity: float = 0.1
    slot_save_path: str = ""  # without it slot actions answer 501
    add_bos: bool = False
    mmproj: bool = False  # takes images and audio
    # speed
    prefill_tps: float = 0.0
    decode_tps: float = 0.0
    answer_tokens: int = 8  # length of an answer that nothing cuts
    helper_delay_s: float = 0.0  # of /tokenize and /apply-template
    # starting and stopping
    bind_delay_s: float = 0.0  # connection refused
    load_s: float = 0.0  # then 503 Loading model
    fail_starts: int = 0  # exits at once that often, counted in count_file
    count_file: str = ""
    ignore_sigterm: bool = False
    print_mb: int = 0  # prints that much when it starts
    print_one_line: bool = False  # ... without a line break
    # answering
    silent: bool = False  # takes generating requests, answers nothing
    fail_next: int = 0  # the next N generating requests get fail_status
    fail_status: int = 500  # 0: the connection is cut before any byte
    fail_after_s: float = 0.0
    exit_after_tokens: int = -1  # the process ends in mid-stream
    cut_after_tokens: int = -1  # the socket is cut in mid-stream
    error_after_tokens: int = -1  # an error event in mid-stream, no [DONE]
    stall_after_tokens: int = -1  # nothing more comes, the slot stays busy
    # slots
    own_choice: bool = False  # forgets pins, chooses itself, and its log says how
    ignore_pins: bool = False  # uses the next slot instead, and says so
    lose_kv: bool = False  # reuses nothing
    hangup_busy_s: float = 0.0  # a slot works on that long after its client left
    slots_hang: bool = False
    metrics_hang: bool = False
    health_hang: bool = False
    # the stream
    usage: str = "real"  # or none | own_chunk | in_finish
    comments: bool = False  # comment lines between the events
    filler_events: int = 0  # tiny whole events of 30 bytes before the first token
    chunk_bytes: int = 0  # the stream's bytes cut into pieces of this size
    chunk_gap_s: float = 0.0  # between fillers and between pieces
    end_late_s: float = 0.0  # the stream stays open behind its end marker
    stale_keepalive: bool = (
        True  # closes the connection after a stream, unannounced, as llama-server
    )

    def update(self, given: dict[str, Any]) -> None:
        """Set fields by name; raises ``ValueError`` for an unknown name or a wrong type."""
        for name, value in given.items():
            if name not in _TYPES:
                raise ValueError(f"unknown setting {name!r}, expected one of {', '.join(_TYPES)}")
            kind = _TYPES[name]
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is not kind:
                raise ValueError(f"{name}: expected {kind.__name__}, got {value!r}")
            setattr(self, name, value)


_TYPES: dict[str, type] = {f.name: type(f.default) for f in fields(Config)}


def from_command_line(argv: list[str]) -> tuple[Config, str, int]:
    """The configuration, host and port from flags; flags nobody knows are ignored."""
    parser = argparse.ArgumentParser(prog="stub_server", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    for name, kind in _TYPES.items():
        flag = f"--{name.replace('_', '-')}"
        default = getattr(Config, name)
        if kind is bool:
            parser.add_argument(flag, default=default, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, default=default, type=kind)
    args, _ = parser.parse_known_args(_spelt_out(argv))
    return Config(**{name: getattr(args, name) for name in _TYPES}), args.host, args.port


def _spelt_out(argv: list[str]) -> list[str]:
    """llama-server's spellings as ours. Its ``--slots`` is a bare switch, ours takes a number."""
    spelt = []
    for n, flag in enumerate(argv):
        bare = flag == "--slots" and not "".join(argv[n + 1 : n + 2]).isdigit()
        if not bare:
            spelt.append(_LLAMA_SERVER.get(flag, flag))
    return spelt
