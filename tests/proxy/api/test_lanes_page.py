"""The lanes page in a real browser, before a stub engine: what a person sees."""

from __future__ import annotations

import contextlib
import copy
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from slotwise.proxy.serving.served import ServedProfile
from tests.browser import axe_source, chromium, grave_findings, page
from tests.running_proxy import RunningProxy, run_proxy
from tests.support import StubServer, wait_until

HOSTILE = "<img src=x onerror=alert(1)>"
PAGE = "/slotwise/"
KEYS = {"ann": "k-ann", "admin": "k-admin"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def asking(proxy: RunningProxy, *contents: str, key: str = "") -> Iterator[None]:
    """Streamed chats that are at work, or wait, while the block runs; nobody reads them out."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    left = threading.Event()

    def one(content: str) -> None:
        body = {"messages": [{"role": "user", "content": content}], "stream": True}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream(
                "POST", f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=60
            ),
        ):
            left.wait(60)

    threads = [threading.Thread(target=one, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        left.set()
        for thread in threads:
            thread.join(60)


def known(proxy: RunningProxy) -> tuple[int, int]:
    """Who runs, who waits."""
    status = proxy.inside(lambda: proxy.driver.scheduler.snapshot(0))
    profile: Any = status["p"]
    return profile["running"], len(profile["waiting"])


@pytest.mark.slow
def test_lanes_and_the_waiting_line_are_shown_as_they_change(browser: Any) -> None:
    with (
        StubServer(prefill_tps=1500.0, decode_tps=20.0, answer_tokens=400) as stub,
        run_proxy(stub) as proxy,
        page(browser, proxy.url + PAGE) as seen,
    ):
        lanes = seen.locator(".lane")
        lanes.nth(3).wait_for()
        assert lanes.count() == 4
        assert "empty" in lanes.nth(0).inner_text()
        assert seen.locator(".none").first.inner_text() == "Nobody waits."
        with asking(proxy, "a " * 3000, "b " * 3000):
            seen.get_by_text(re.compile(r"^reading [\d,]+ of 3,0\d\d$")).wait_for()
            seen.get_by_text("another long prompt is being read").wait_for()
            seen.get_by_text("answering").first.wait_for()
            assert seen.title().endswith("waiting · slotwise")
        seen.locator("#requests button").first.wait_for()


@pytest.mark.slow
def test_an_explanation_is_one_click_away_and_the_keyboard_does_it_too(
    browser: Any, stub: StubServer
) -> None:
    with run_proxy(stub) as proxy, page(browser, proxy.url + PAGE) as seen:
        proxy.chat("c " * 900).raise_for_status()
        button = seen.locator("#requests button").first
        button.focus()
        seen.keyboard.press("Enter")
        seen.locator(".detail .culprit").wait_for()
        assert button.get_attribute("aria-expanded") == "true"
        assert "tokens came from the cache" in seen.locator(".detail .culprit").inner_text()
        assert seen.locator(".detail tbody tr").count() >= 1
        seen.keyboard.press("Space")
        seen.locator(".detail").wait_for(state="hidden")


@pytest.mark.slow
def test_a_hostile_name_or_prompt_is_text(browser: Any) -> None:
    profile = ServedProfile(HOSTILE)
    with (
        StubServer(decode_tps=20.0, answer_tokens=200, alias=HOSTILE) as stub,
        run_proxy(stub, profile=profile, keys={HOSTILE: "k"}) as proxy,
        page(browser, proxy.url + PAGE) as seen,
    ):
        asks = [{"role": "user", "content": HOSTILE}]
        body = {"messages": asks, "model": HOSTILE, "max_tokens": 2}
        headers = {"Authorization": "Bearer k", "X-Session-Id": HOSTILE, "User-Agent": HOSTILE}
        asked = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
        assert asked.status_code == 200
        with asking(proxy, *"uvwxyz", key="k"):  # more than there are slots
            seen.fill("#key", "k")
            seen.keyboard.press("Enter")
            seen.locator(".line li").first.wait_for()
            seen.locator("#requests button").first.click()
            seen.locator(".detail .culprit").wait_for()
            assert seen.locator("#lanes h2").inner_text().startswith(HOSTILE)
            assert HOSTILE in seen.locator(".line li").first.inner_text()
            proxy.inside(lambda: proxy.driver.engines.down(f"{HOSTILE}-0", "exited", HOSTILE))
            seen.get_by_text(f"is down: {HOSTILE}").wait_for()
        assert seen.locator("img").count() == 0


def test_an_engine_that_is_gone_is_said_and_so_is_slotwise(browser: Any, stub: StubServer) -> None:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(run_proxy(stub))
        with page(browser, proxy.url + PAGE) as seen:
            seen.locator(".lane").first.wait_for()
            proxy.inside(lambda: proxy.driver.engines.down("p-0", "exited", "status 137"))
            seen.get_by_text("Engine p-0 is down: status 137").wait_for()
            assert seen.locator(".lane").count() == 0
            stack.close()
            seen.locator("#link[data-state=lost]").wait_for()
            assert seen.locator("#shown").get_attribute("data-old") == "true"
            assert "trying again" in seen.locator("#link").inner_text()


@pytest.mark.slow
def test_it_is_live_again_when_the_stream_was_cut(browser: Any, stub: StubServer) -> None:
    with run_proxy(stub) as proxy, page(browser, proxy.url + PAGE) as seen:
        seen.locator(".lane").first.wait_for()
        seen.route("**/slotwise/events", lambda route: route.abort(), times=2)
        seen.reload()
        seen.locator("#link[data-state=lost]").wait_for()
        seen.locator("#link[data-state=live]").wait_for()


def test_with_keys_it_asks_for_one_and_forgets_it(browser: Any, stub: StubServer) -> None:
    with run_proxy(stub, keys=KEYS) as proxy, page(browser, proxy.url + PAGE) as seen:
        seen.locator("#ask-key").wait_for()
        assert not seen.locator("#shown").is_visible()
        seen.fill("#key", "wrong")
        seen.keyboard.press("Enter")
        seen.get_by_text("This key is not known here.").wait_for()
        seen.fill("#key", KEYS["ann"])
        seen.get_by_role("button", name="Show the lanes").click()
        seen.locator(".lane").first.wait_for()
        assert "k-ann" not in seen.content()
        seen.get_by_role("button", name="Forget key").click()
        seen.locator("#ask-key").wait_for()
        assert not seen.locator("#shown").is_visible()
        assert seen.evaluate("sessionStorage.length + localStorage.length") == 0


def with_waiting(status: dict[str, Any], n: int) -> dict[str, Any]:
    """The same moment with a line of so many."""
    made = copy.deepcopy(status)
    one = {
        **{"session": "3a76833a", "kind": "agent", "key": "ann", "prompt_tokens": 30_000},
        **{"reason": "slots_busy", "text": "all 4 slots are at work", "waited_s": 3.0},
    }
    made["profiles"]["p"]["waiting"] = [{**one, "id": f"req-{k}", "ahead": k} for k in range(n)]
    return made


def test_two_hundred_who_wait_are_drawn_at_once(browser: Any, stub: StubServer) -> None:
    """Within 100 ms of the page's own processor time, so that who else uses this machine does not
    matter; of five tries the quickest counts."""
    with run_proxy(stub) as proxy, page(browser, proxy.url + PAGE) as seen:
        seen.locator(".lane").first.wait_for()
        status = proxy.client.get("/slotwise/status").json()
        seen.evaluate(
            """async () => {
              const { draw } = await import("/slotwise/main.js");
              window.show = (status) => {
                draw(status);
                document.body.offsetHeight;  // with styles and layout
                return document.querySelectorAll(".line li").length;
              };
            }"""
        )
        session = seen.context.new_cdp_session(seen)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        took_s = []
        for _ in range(5):
            assert seen.evaluate("show", with_waiting(status, 0)) == 0
            before_s = thread_s(session)
            assert seen.evaluate("show", with_waiting(status, 200)) == 200
            took_s.append(thread_s(session) - before_s)
        assert 0 < min(took_s) < 0.1, took_s


def thread_s(session: Any) -> float:
    """Processor time of the page's thread so far, in scripts, styles and layout."""
    found = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in found if m["name"] == "TaskDuration"))


def test_axe_finds_nothing_grave(browser: Any) -> None:
    source = axe_source()

    def judged() -> list[str]:
        found = []
        for scheme in ("dark", "light"):
            seen.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found += grave_findings(seen, source)
        return found

    with (
        StubServer(prefill_tps=400.0, decode_tps=20.0, answer_tokens=400) as stub,
        run_proxy(stub, keys=KEYS) as proxy,
        page(browser, proxy.url + PAGE) as seen,
    ):
        seen.locator("#ask-key").wait_for()
        assert judged() == []
        key = KEYS["admin"]
        client = httpx.Client(base_url=proxy.url, headers={"Authorization": f"Bearer {key}"})
        with client:
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            client.post("/v1/chat/completions", json=body).raise_for_status()
        seen.fill("#key", key)
        seen.keyboard.press("Enter")
        seen.locator("#requests button").first.click()
        seen.locator(".detail .culprit").wait_for()
        with asking(proxy, "a " * 1500, "b " * 1500, "c " * 1500, "d " * 1500, key=key):
            wait_until(lambda: sum(known(proxy)) == 4)
            seen.locator(".line li").first.wait_for()
            assert judged() == []
            seen.set_viewport_size({"width": 400, "height": 800})
            assert judged() == []
            proxy.inside(lambda: proxy.driver.engines.down("p-0", "exited", "gone"))
            seen.get_by_text("Engine p-0 is down").wait_for()
            assert judged() == []


def test_nothing_is_wider_than_the_window(browser: Any, stub: StubServer) -> None:
    with run_proxy(stub) as proxy, page(browser, proxy.url + PAGE) as seen:
        proxy.chat("d " * 900).raise_for_status()
        seen.locator("#requests button").first.click()
        seen.locator(".detail .culprit").wait_for()
        for width in (320, 400, 700, 1000, 1280):
            seen.set_viewport_size({"width": width, "height": 800})
            assert seen.evaluate("document.documentElement.scrollWidth") <= width
