"""A driver alone, without the server around it, and requests to hand to it."""

from __future__ import annotations

from typing import Any

from slotwise.policies.prefix import pack
from slotwise.policies.types import Request
from slotwise.proxy.engine.pace import Pace
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile
from tests.proxy.shell import Recorder, queue

FAST = Pace(between_s=0.05, delay_s=0.01)


def made(journal: Recorder, **changes: Any) -> Driver:
    profile = ServedProfile("main", params=queue(**changes))
    return Driver([profile], journal, pace=FAST)


def request(id: str, n: int = 10, base: int = 0) -> Request:
    return Request(id, "main", pack(range(base, base + n)), 5, 1, 8, True, "k")
