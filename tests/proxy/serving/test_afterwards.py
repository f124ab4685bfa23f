"""Jobs done later: in order, each done once, whatever one of them raises."""

from __future__ import annotations

import asyncio

import pytest

from slotwise.proxy.serving.driver import Afterwards
from tests.support import wait_until_async


def test_jobs_are_done_in_order_a_little_later_or_when_somebody_looks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []

    def failing() -> None:
        raise ValueError("of the job")

    async def work() -> None:
        jobs = Afterwards()
        jobs.add(lambda: done.append(1))
        jobs.add(failing)
        jobs.add(lambda: done.append(2))
        assert done == []
        await wait_until_async(lambda: done == [1, 2])
        jobs.add(lambda: done.append(3))
        jobs.catch_up()
        assert done == [1, 2, 3]

    asyncio.run(work())
    assert "of the job" in caplog.text


def test_where_no_loop_runs_a_job_is_done_at_once() -> None:
    done: list[int] = []
    Afterwards().add(lambda: done.append(1))
    assert done == [1]
