"""Parameters from a profile: all faults at once, each with its path and its limit."""

from __future__ import annotations

import pytest

from slotwise.policies.cost import prefill_s, step_s
from slotwise.policies.params import _MOVED, KNOBS, Cost, Params, from_mapping


def test_nothing_given_means_the_defaults() -> None:
    assert from_mapping({}) == (Params(), [])


def test_a_value_reaches_its_knob() -> None:
    found, faults = from_mapping({"max_running": 3, "home": False})
    assert not faults
    assert found.max_running == 3
    assert found.home is False


def test_all_faults_come_at_once_with_path_value_and_limit() -> None:
    _, faults = from_mapping(
        {
            "max_running": -1,
            "max_waiting": "many",
            "chunk_tokens": 1.5,
            "home": 1,
            "affinity": [],
            "nonsense": {},
            "cost": 3,
        }
    )
    known = ", ".join(KNOBS)
    assert faults == [
        "policy.max_running: expected 0 to 256 requests, got -1",
        "policy.max_waiting: expected a whole number, got 'many'",
        "policy.chunk_tokens: expected a whole number, got 1.5",
        "policy.home: expected true or false, got 1",
        "policy.affinity: expected true or false, got []",
        f"policy.nonsense: unknown key, expected one of {known}",
        f"policy.cost: unknown key, expected one of {known}",
    ]


def test_what_earlier_profiles_said_is_named_with_what_says_it_now() -> None:
    given = {
        "queue": {"max_running": 2, "max_waiting_per_key": 5},
        "order": {"max_overtake_s": 60},
        "home": {"enabled": False, "patience_max_s": 3},
        "cap": {"enabled": False},
    }
    found, faults = from_mapping(given)
    assert found == Params()
    assert faults == [
        "policy.queue.max_running: is now policy.max_running (docs/profiles.md)",
        "policy.queue.max_waiting_per_key: is now policy.max_waiting (docs/profiles.md)",
        "policy.order.max_overtake_s: is now policy.max_wait_s (docs/profiles.md)",
        "policy.home.enabled: is now policy.home (docs/profiles.md)",
        "policy.home.patience_max_s: no longer a setting; remove it",
        "policy.cap.enabled: no longer a setting; remove it",
    ]


def test_what_a_setting_became_is_a_setting() -> None:
    assert set(_MOVED.values()) <= set(KNOBS)


def test_not_a_number_is_no_number() -> None:
    _, faults = from_mapping({"keep_s": float("nan")})
    assert faults == ["policy.keep_s: expected a number, got nan"]


def test_a_number_of_four_hundred_digits_is_outside_the_bounds() -> None:
    _, (fault, other) = from_mapping({"max_running": 10**400, "keep_s": -(10**400)})
    assert fault.startswith("policy.max_running: expected 0 to 256 requests, got 1000")
    assert other.startswith("policy.keep_s: expected 0 to 3600 s, got -1000")


def test_every_knob_has_a_unit_a_reason_and_a_default_within_its_bounds() -> None:
    for knob in KNOBS.values():
        assert all(knob.metadata[name] for name in ("unit", "why")), knob.name
        if knob.metadata["unit"] != "switch":
            assert knob.metadata["low"] <= knob.default <= knob.metadata["high"], knob.name


def test_a_person_can_hold_the_settings_in_mind() -> None:
    numbers = [knob for knob in KNOBS.values() if knob.metadata["unit"] != "switch"]
    assert len(numbers) <= 15


def test_rates_set_the_first_values_of_the_costs() -> None:
    found, _ = from_mapping({"prefill_tps": 9500, "decode_tps": 48})
    tokens_s = prefill_s(found.cost, 0, 9000) - prefill_s(found.cost, 0, 1)
    assert tokens_s == pytest.approx((prefill_s(Cost(), 0, 9000) - prefill_s(Cost(), 0, 1)) / 10)
    assert step_s(found.cost, 3) == pytest.approx(step_s(Cost(), 3) / 2)
    assert found.cost.prefill_c_s == pytest.approx(5 / 48)
