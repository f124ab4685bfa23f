"""Parameters from a profile: all faults at once, each with its path and its limit."""

from __future__ import annotations

from dataclasses import fields

from slotwise.policies.params import Params, from_mapping


def test_nothing_given_means_the_defaults() -> None:
    assert from_mapping({}) == (Params(), [])


def test_a_value_reaches_its_knob() -> None:
    found, faults = from_mapping({"queue": {"max_running": 3}, "home": {"enabled": False}})
    assert not faults
    assert found.queue.max_running == 3
    assert found.home.enabled is False


def test_all_faults_come_at_once_with_path_value_and_limit() -> None:
    _, faults = from_mapping(
        {
            "queue": {"max_running": -1, "max_waiting": "many"},
            "home": {"chunk_tokens": 1.5, "enabled": 1},
            "guest": {"sit_anywhere": True},
            "affinity": [],
            "nonsense": {},
        }
    )
    assert faults == [
        "policy.queue.max_running: expected 0 to 256 requests, got -1",
        "policy.queue.max_waiting: expected a whole number, got 'many'",
        "policy.home.chunk_tokens: expected a whole number, got 1.5",
        "policy.home.enabled: expected true or false, got 1",
        "policy.guest.sit_anywhere: unknown key, expected one of enabled, guest_max_tokens, "
        "resident_share, protect_s, break_after_s, break_ratio, follow, guest_max_wait_s",
        "policy.affinity: expected a mapping, got []",
        "policy.nonsense: unknown section, expected one of cost, home, guest, affinity, window, "
        "order, keep, cap, cold, queue",
    ]


def test_not_a_number_is_no_number() -> None:
    _, faults = from_mapping({"home": {"patience_max_s": float("nan")}})
    assert faults == ["policy.home.patience_max_s: expected a number, got nan"]


def test_a_number_of_four_hundred_digits_is_outside_the_bounds() -> None:
    _, (fault, other) = from_mapping(
        {"queue": {"max_running": 10**400}, "keep": {"worth": -(10**400)}}
    )
    assert fault.startswith("policy.queue.max_running: expected 0 to 256 requests, got 1000")
    assert other.startswith("policy.keep.worth: expected 0 to 1e+06 s/s, got -1000")


def test_every_knob_has_a_unit_a_reason_and_a_default_within_its_bounds() -> None:
    for section in fields(Params):
        for knob in fields(section.default_factory):  # type: ignore[arg-type]
            assert all(knob.metadata[name] for name in ("unit", "why")), knob.name
            if knob.metadata["unit"] != "switch":
                assert knob.metadata["low"] <= knob.default <= knob.metadata["high"], knob.name
