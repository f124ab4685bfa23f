"""llama.cpp's own server from a Python wheel, as a process that behaves like ``llama-server``.

    python -m slotwise.launcher.process.embedded -m MODEL.gguf --port 8080 -np 4 -c 32768

The wheel holds the server as an extension: its HTTP threads, its inference loop, its endpoints.
What it lacks is the program around them, which is this file: the command line, the exit codes and
the signals. So the launcher starts either the same way and cannot tell them apart.

* A bad flag, a missing or broken model, a taken port: one line on stderr, exit code 1.
* SIGTERM and SIGINT end it at once with exit code 0, even while it streams. The extension's own
  destructor would wait for every open connection, and it would hold the interpreter's lock while
  it waits; nothing of the engine outlives the process, so it is left out.
* A signal during the load kills by default action, as it kills llama-server: the extension holds
  the interpreter's lock while it loads, and no handler of ours could run.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import psutil

from slotwise.launcher.profile import engine_flags

EXIT_FAULT = 1
HIGHEST_PORT = 65535
GGUF_MAGIC = b"GGUF"
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class EngineFault(RuntimeError):  # noqa: N818 (a fault of the engine's surroundings, told as one line)
    """The engine cannot start; the text is one line for the user."""


def main(words: list[str] | None = None) -> NoReturn:
    """Runs the server until a signal ends it; never returns."""
    arguments = sys.argv[1:] if words is None else words
    if {"-h", "--help"} & set(arguments):
        print(engine_flags.USAGE)
        sys.exit(0)
    faulthandler.enable()  # a crash in the extension leaves a stack in the log
    for ending in _ENDING_SIGNALS:
        signal.signal(ending, signal.SIG_DFL)
    try:
        server = _start(engine_flags.parse(arguments, os.environ))
    except (engine_flags.FlagError, EngineFault) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_FAULT)
    _wait_for_signal()
    print("embedded engine: stopped by a signal", file=sys.stderr, flush=True)
    os._exit(0 if server is not None else EXIT_FAULT)


def _start(settings: Mapping[str, Any]) -> Any:
    """A listening server with its model loaded; raises EngineFault."""
    _check_model(Path(settings["model.path"]))
    for host in settings["hostnames"]:
        _check_port(host, settings["port"])
    try:
        engine = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise EngineFault(
            f"the embedded engine is not installed ({error}): pip install 'slotwise[embedded]'"
        ) from error
    parameters = engine.CommonParams()
    threads = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    for name, value in settings.items():
        _set(engine, parameters, name, value)
    try:
        return engine.Server(parameters)
    except RuntimeError as error:
        raise EngineFault(
            f"the engine did not start with {settings['model.path']}; the reason is above ({error})"
        ) from error


def _set(engine: Any, parameters: Any, name: str, value: Any) -> None:
    """Sets one dotted attribute, in the type that the extension wants."""
    holder = parameters
    *path, attribute = name.split(".")
    for part in path:
        holder = getattr(holder, part)
    if name == "flash_attn_type":
        value = getattr(engine.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{value}")
    elif name in ("cache_type_k", "cache_type_v"):
        value = getattr(engine.ggml_type, f"GGML_TYPE_{value}")
    elif name == "model_alias":
        value = set(value)
    try:
        setattr(holder, attribute, value)
    except (OverflowError, TypeError) as error:
        raise EngineFault(f"{name}: the engine does not take {value!r} ({error})") from error


def _check_model(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise EngineFault(f"cannot read the model {path}: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise EngineFault(f"the model {path} is not a GGUF file")


def _check_port(host: str, port: int) -> None:
    """The clear line for a taken port; the engine's own bind stays the one that decides."""
    if not 0 <= port <= HIGHEST_PORT:  # the extension would wrap it silently
        raise EngineFault(f"--port: expected 0 to {HIGHEST_PORT}, got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise EngineFault(f"cannot listen on {host}:{port}: {error}") from error


def _wait_for_signal() -> None:
    """Returns on the first SIGTERM or SIGINT.

    A pipe and not just a handler: the kernel may deliver the signal to a thread of the engine,
    which would leave this one asleep.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for ending in _ENDING_SIGNALS:
        signal.signal(ending, lambda *_: None)
    select.select([reader], [], [])
    for ending in _ENDING_SIGNALS:  # a second one, should the rest be slow, ends it hard
        signal.signal(ending, signal.SIG_DFL)


if __name__ == "__main__":
    main()
