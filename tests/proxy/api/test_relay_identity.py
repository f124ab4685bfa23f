"""Who asks, end to end: sessions, kinds and the normaliser in front of an engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.params import Params
from slotwise.proxy.chat.normalize import Normalize
from slotwise.proxy.core.events import Dispatch, RequestArrived
from slotwise.proxy.serving.served import ServedProfile
from tests.proxy.shell import CHAT, proxy
from tests.support import StubServer, wait_until_async

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("a", "b", "c")
]


def agent(system: str, *turns: str, tools: Any = TOOLS) -> dict[str, Any]:
    """An agent's request: system text, tools, and user and assistant turns in turn."""
    messages = [{"role": "system", "content": system}]
    for n, text in enumerate(turns):
        messages.append({"role": "assistant" if n % 2 else "user", "content": text})
    return {"messages": messages, "tools": tools, "max_tokens": 4}


def test_a_clock_in_the_system_text_does_not_cost_the_slot(stub: StubServer) -> None:
    """Field report R06, with another chat between the turns."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            work = "the work " * 200
            first = await p.client.post(CHAT, json=agent("It is 10:31:05. Help.", work))
            await p.client.post(CHAT, json=agent("Another client.", "other " * 100))
            second = agent("It is 10:32:44. Help.", work, "done", "go on")
            again = await p.client.post(CHAT, json=second)
            assert again.headers["x-slotwise-rule"] == "session"
            assert again.headers["x-slotwise-slot"] == first.headers["x-slotwise-slot"]
            one, _, three = [e.request.session for e in p.journal.events(RequestArrived)]
            assert one == three != ""

    asyncio.run(run())


def test_reordered_tools_do_not_cost_the_slot(stub: StubServer) -> None:
    """Field report R15."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            work = "the work " * 200
            first = await p.client.post(CHAT, json=agent("Help.", work))
            await p.client.post(CHAT, json=agent("Another client.", "other " * 100))
            second = agent("Help.", work, "done", "go on", tools=TOOLS[::-1])
            again = await p.client.post(CHAT, json=second)
            assert again.headers["x-slotwise-slot"] == first.headers["x-slotwise-slot"]

    asyncio.run(run())


BILLING = "x-anthropic-billing-header: cc_version=2.1.36; cch={};"


def uncached(answer: Any) -> int:
    usage = answer.json()["usage"]
    computed: int = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return computed


def test_a_changing_billing_line_reaches_the_engine_the_same(stub: StubServer) -> None:
    """Field report R03, and the client is told."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            await p.client.post(CHAT, json=agent(BILLING.format("a1b2c"), "hello"))
            answer = await p.client.post(CHAT, json=agent(BILLING.format("d3e4f"), "hello"))
            assert answer.headers["x-slotwise-normalized"] == "billing_header"
            assert uncached(answer) == 1
            metrics = (await p.client.get("/metrics")).text
            counted = 'slotwise_normalized_total{part="billing_header",profile="main"} 2.0'
            assert counted in metrics

    asyncio.run(run())


def test_the_normaliser_can_be_switched_off(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            served = p.driver.profiles["main"]
            p.driver.profiles["main"] = replace(served, normalize=Normalize(billing_header=False))
            await p.client.post(CHAT, json=agent(BILLING.format("a1b2c"), "hello"))
            answer = await p.client.post(CHAT, json=agent(BILLING.format("d3e4f"), "hello"))
            assert "x-slotwise-normalized" not in answer.headers
            assert uncached(answer) > 1

    asyncio.run(run())


@pytest.mark.parametrize("job_first", [False, True])
def test_a_side_job_sits_apart_from_the_conversation(stub: StubServer, job_first: bool) -> None:
    """Field report R20: the title job comes at the same moment as the first message."""
    stub.configure(stall_after_tokens=1)  # so that the first is at work when the other is placed

    async def run() -> None:
        async with proxy(stub.url, params=Params(max_running=2)) as p:
            title = {
                "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title"}],
                "max_tokens": 4,
            }
            bodies = [agent("Help.", "the work " * 200), title]
            sent: list[asyncio.Task[Any]] = []

            def all_placed() -> bool:
                return len(list(p.journal.actions(Dispatch))) == len(sent)

            for body in reversed(bodies) if job_first else bodies:
                sent.append(asyncio.create_task(p.client.post(CHAT, json=body)))
                await wait_until_async(all_placed)
            kinds = {e.request.id: e.request.kind for e in p.journal.events(RequestArrived)}
            taken = {kinds[d.id]: d.slot.id_slot for d in p.journal.actions(Dispatch)}
            assert taken["side"] != taken["agent"]
            for task in sent:
                task.cancel()
            await asyncio.wait(sent, timeout=10)

    asyncio.run(run())


def test_served_profiles_come_with_the_defaults() -> None:
    assert ServedProfile("p").normalize == Normalize(billing_header=True)
