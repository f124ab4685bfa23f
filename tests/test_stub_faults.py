"""The stub engine misbehaves as it is told, and only so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients import HangingClient, chat, post
from tests.stub_config import from_command_line
from tests.support import Process, StubServer, stub_binary, wait_until

BUSY = {"prefill_tps": 0.0, "decode_tps": 20.0, "answer_tokens": 40}  # two seconds of answer


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("status", [400, 500, 503])
def test_the_next_requests_get_a_status(two_slots: StubServer, status: int) -> None:
    two_slots.configure(fail_next=1, fail_status=status)
    failed = post(two_slots, chat(stream=True))
    assert (failed.status_code, failed.json()["error"]["code"]) == (status, status)
    assert post(two_slots, chat()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_socket_can_be_cut_before_any_byte_and_in_the_middle(
    two_slots: StubServer, stream: bool
) -> None:
    two_slots.configure(fail_next=1, fail_status=0, cut_after_tokens=2)
    for _ in range(2):
        with pytest.raises(httpx.RemoteProtocolError):
            post(two_slots, chat(stream=stream))
    assert [r["ended"] for r in two_slots.requests()] == ["cut", "cut"]
    assert wait_until(lambda: not two_slots.busy())


def test_an_error_event_ends_a_stream_without_done(two_slots: StubServer) -> None:
    two_slots.configure(error_after_tokens=1)
    url = two_slots.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=chat(stream=True)) as response:
        text = "".join(_until_closed(response.iter_text()))
    assert '"error":{"code":500' in text
    assert "[DONE]" not in text


def _until_closed(pieces: Iterator[str]) -> Iterator[str]:
    try:
        yield from pieces
    except httpx.RemoteProtocolError:
        return


def test_silence_and_a_stall_last_until_the_client_leaves(two_slots: StubServer) -> None:
    two_slots.configure(silent=True)
    silent = HangingClient(two_slots, chat(id_slot=0))
    wait_until(lambda: len(two_slots.requests()) == 1)
    two_slots.configure(silent=False, stall_after_tokens=1)
    stalled = HangingClient(two_slots, chat(id_slot=1, stream=True))
    wait_until(lambda: two_slots.busy() == [1])
    for hanging in (silent, stalled):
        hanging.hang_up()
    wait_until(lambda: [r["ended"] for r in two_slots.requests()] == ["client_gone"] * 2)


def test_slots_can_hang_while_health_answers(two_slots: StubServer) -> None:
    two_slots.configure(slots_hang=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(two_slots.url + "/slots", timeout=0.2)
    assert httpx.get(two_slots.url + "/health").status_code == 200


def test_loading_answers_503_to_everything(two_slots: StubServer) -> None:
    two_slots.configure(load_s=30.0)
    assert post(two_slots, chat()).status_code == 503
    assert httpx.get(two_slots.url + "/v1/models").status_code == 503
    two_slots.configure(load_s=0.0)
    assert httpx.get(two_slots.url + "/health").status_code == 200


@pytest.mark.parametrize("given", [{"nope": 1}, {"slots_hang": 1}, {"usage": None}])
def test_a_setting_that_is_none_is_refused(two_slots: StubServer, given: dict[str, Any]) -> None:
    assert post(two_slots, given, "/stub/config").status_code == 400


# ---------------------------------------------------------------- the process


def test_it_can_die_in_mid_stream() -> None:
    with StubServer(exit_after_tokens=1) as stub:
        with pytest.raises(httpx.RemoteProtocolError):
            post(stub, chat(stream=True))
        assert stub.popen.wait(10) == 1


def test_it_can_ignore_sigterm() -> None:
    with StubServer(ignore_sigterm=True) as stub:
        stub.popen.terminate()
        assert httpx.get(stub.url + "/health").status_code == 200
        assert stub.stop(timeout_s=0.2) == -9


def test_it_waits_for_its_clients_at_the_first_sigterm_and_exits_at_the_second() -> None:
    with StubServer(silent=True) as stub:
        waiting = HangingClient(stub, chat())
        wait_until(lambda: len(stub.requests()) == 1)
        stub.popen.terminate()
        wait_until(lambda: _refuses(stub.url))
        assert stub.popen.poll() is None
        stub.popen.terminate()
        assert stub.popen.wait(10) == 1
        waiting.hang_up()


def _refuses(url: str) -> bool:
    try:
        httpx.get(url + "/health", timeout=1)
    except httpx.TransportError:
        return True
    return False


def test_as_a_binary_it_takes_llama_servers_flags_and_fails_the_first_starts(
    tmp_path: Path,
) -> None:
    binary = stub_binary(tmp_path, fail_starts=1, count_file=str(tmp_path / "n"), print_mb=1)
    line = f"{binary} -m x.gguf -np 3 -c 3000 --slots --metrics -ctk q8_0 -b 64 --api-key k"
    command = [*line.split(), "--no-kv-unified", "--port", "0"]
    with Process(command) as first:
        assert first.popen.wait(20) == 1
    with Process(command) as second:
        url = second.wait_for_line("listening on ")
        assert httpx.get(url + "/slots").status_code == 401
        slots = httpx.get(url + "/slots", headers={"authorization": "Bearer k"}).json()
        assert [slot["n_ctx"] for slot in slots] == [1000, 1000, 1000]
        assert len(second.output) > 2**20


def test_command_lines_are_read_as_llama_server_reads_them() -> None:
    line = "--slots -np 5 --kv-unified -c 99 --port 7 --slot-save-path /x -sps 0"
    config, host, port = from_command_line(line.split())
    assert (config.slots, config.kv_unified, config.ctx, config.slot_save_path) == (
        5,
        True,
        99,
        "/x",
    )
    assert (config.slot_prompt_similarity, host, port) == (0.0, "127.0.0.1", 7)


def test_many_streams_closed_at_any_moment_leave_no_slot_and_no_task_behind(
    two_slots: StubServer,
) -> None:
    two_slots.configure(decode_tps=200.0, answer_tokens=20)
    gate = threading.Barrier(16)

    def one(n: int) -> None:
        hanging = HangingClient(two_slots, chat(f"client {n}", stream=True, id_slot=n % 2))
        gate.wait(10)
        hanging.hang_up()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))
    wait_until(lambda: not two_slots.busy())
    idle = wait_until(lambda: two_slots.log()["tasks"] < 10 and two_slots.log())
    assert all(r["ended"] for r in idle["requests"])
