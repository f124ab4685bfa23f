"""The probe: what is wrong with a launch is said in a sentence, whatever the engine does."""

from __future__ import annotations

import asyncio

import pytest

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.engine.probe import ProbeResult, probe
from slotwise.proxy.serving.served import ServedProfile, build_of
from tests.support import StubServer


def probed(url: str) -> ProbeResult:
    async def run() -> ProbeResult:
        client = EngineClient(url, None, timeout_s=5)
        try:
            return await probe(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_an_engine_that_keeps_pins_is_used_with_its_windows(stub: StubServer) -> None:
    result = probed(stub.url)
    assert (result.reachable, result.pins, result.windows) == (True, True, (8192,) * 4)
    used = [request["slot"] for request in stub.requests()]
    assert used == [3, 0, 3]
    assert stub.log()["violations"] == 0


def test_one_slot_is_probed_without_a_second() -> None:
    with StubServer(slots=1) as stub:
        assert probed(stub.url).pins


def test_an_engine_that_ignores_pins_is_served_without(stub: StubServer) -> None:
    stub.configure(ignore_pins=True)
    result = probed(stub.url)
    assert result.reachable
    assert not result.pins
    assert "pins do not hold" in result.text


def test_an_engine_that_clears_idle_slots_is_told_of(stub: StubServer) -> None:
    stub.configure(lose_kv=True)
    result = probed(stub.url)
    assert not result.pins
    assert "--no-cache-idle-slots" in result.text


def test_the_slots_used_are_emptied_where_the_engine_can(tmp_path: object) -> None:
    with StubServer(slot_save_path=str(tmp_path)) as stub:
        assert probed(stub.url).pins
        helpers = stub.log()["helpers"]
    assert helpers.get("/slots/3") == 1
    assert helpers.get("/slots/0") == 3, "and tried to keep a state in a file"


def test_an_engine_that_fails_the_probe_is_served_without_pins(stub: StubServer) -> None:
    stub.configure(fail_next=1)
    result = probed(stub.url)
    assert (result.reachable, result.pins) == (True, False)
    assert "the probe failed" in result.text


def test_an_engine_that_does_not_tell_what_it_reused_is_served_without_pins(
    stub: StubServer,
) -> None:
    stub.configure(usage="none")
    result = probed(stub.url)
    assert (result.reachable, result.pins) == (True, False)
    assert "timings" in result.text


def test_no_engine_is_no_exception() -> None:
    result = probed("http://127.0.0.1:9")
    assert (result.reachable, result.pins) == (False, False)
    assert "cannot be asked" in result.text


@pytest.mark.parametrize(
    ("told", "known", "shown"),
    [
        ("b11549-abc", "wheel 1.0", "b11549-abc"),
        ("b0-unknown", "wheel 1.0", "wheel 1.0"),
        (None, "wheel 1.0", "wheel 1.0"),
        ("b0-unknown", "", ""),
    ],
)
def test_a_build_is_told_by_the_engine_or_by_who_starts_it(
    told: str | None, known: str, shown: str
) -> None:
    probe_of = ProbeResult(True, True, "", props={"build_info": told})
    assert build_of(probe_of, ServedProfile("p", build=known)) == shown
    assert build_of(None, ServedProfile("p", build=known)) == known
