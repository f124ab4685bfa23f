"""Errors in the shape that OpenAI clients read."""

from __future__ import annotations

import json

from slotwise.proxy.core.events import Refuse
from slotwise.proxy.errors import ProxyError, UpstreamError, bad, framed, refused


def test_an_error_names_message_type_param_and_code() -> None:
    assert json.loads(bad("n", "n: expected 1, got 2").body()) == {
        "error": {
            "message": "n: expected 1, got 2",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request_error",
        }
    }


def test_a_prompt_too_long_is_refused_with_both_numbers() -> None:
    error = refused(
        Refuse("r", 400, "exceed_context_size_error", "too long", n_prompt_tokens=9, n_ctx=8)
    )
    told = json.loads(error.body())["error"]
    assert error.status == 400
    assert (told["type"], told["n_prompt_tokens"], told["n_ctx"]) == (
        "exceed_context_size_error",
        9,
        8,
    )


def test_a_refusal_that_ends_says_when_to_come_again() -> None:
    error = refused(Refuse("r", 429, "rate_limit_exceeded", "full", retry_after_s=5))
    assert error.headers == {"Retry-After": "5"}
    assert json.loads(error.body())["error"]["type"] == "rate_limit_error"


def test_a_framed_error_is_one_event_and_no_end_marker() -> None:
    frame = framed(ProxyError(503, "engine_lost", "two\nlines"))
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    assert frame.count(b"\n") == 2
    assert json.loads(frame[6:])["error"]["message"] == "two\nlines"


def test_the_engines_own_error_is_framed_as_it_is() -> None:
    own = {"error": {"code": 400, "message": "bad grammar", "type": "invalid_request_error"}}
    content = json.dumps(own, indent=1).encode()
    assert json.loads(framed(UpstreamError(400, content, "application/json"))[6:]) == own


def test_an_answer_that_is_no_json_is_framed_as_text() -> None:
    frame = framed(UpstreamError(502, b"<html>gate\nway</html>", "text/html"))
    assert "gate\nway" in json.loads(frame[6:])["error"]["message"]
    assert frame.count(b"\n") == 2
