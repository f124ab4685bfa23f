"""The stream reader: no byte is changed, and everything that is told is found."""

from __future__ import annotations

import json

import pytest

from slotwise.proxy.engine.sse import Progress, SseReader


def event(data: str, end: str = "\n\n") -> bytes:
    return f"data: {data}{end}".encode()


def delta(**fields: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": fields}]}, separators=(",", ":"))


def progress(processed: int, total: int = 300) -> bytes:
    told = {"total": total, "cache": 100, "processed": processed, "time_ms": 1}
    return event(json.dumps({"choices": [{"delta": {"content": None}}], "prompt_progress": told}))


TIMINGS = {"cache_n": 100, "prompt_n": 200, "predicted_n": 2}
ANSWER = [
    event(delta(role="assistant", content=None)),
    event(delta(content="one")),
    event(delta(content=' "prompt_progress" \\n\\n "timings"')),
    event(json.dumps({"choices": [{"finish_reason": "stop", "delta": {}}], "timings": TIMINGS})),
    event("[DONE]"),
]
PREFILL = [progress(100), b": ping\n\n", progress(300)]


def read(pieces: list[bytes], drop: bool) -> tuple[bytes, SseReader]:
    reader = SseReader(drop_progress=drop)
    out = b"".join(reader.feed(piece) for piece in pieces)
    return out + reader.finish(), reader


def cut(stream: bytes, at: int) -> list[bytes]:
    return [stream[:at], stream[at:]]


def test_only_the_injected_progress_is_taken_out_wherever_the_stream_is_split() -> None:
    stream = b"".join(PREFILL + ANSWER)
    expected = b": ping\n\n" + b"".join(ANSWER)
    for at in range(len(stream) + 1):
        out, reader = read(cut(stream, at), drop=True)
        assert out == expected, f"split at {at}"
        seen = reader.seen
        assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == (300, 100, 2)
        assert seen.progress == Progress(300, 100, 300)
        assert seen.done
        assert seen.generated == 2
    out, _ = read([stream[i : i + 1] for i in range(len(stream))], drop=True)
    assert out == expected


def test_progress_that_the_client_asked_for_stays_and_is_read() -> None:
    stream = b"".join(PREFILL + ANSWER)
    for at in range(0, len(stream), 7):
        out, reader = read(cut(stream, at), drop=False)
        assert out == stream
        assert reader.seen.progress == Progress(300, 100, 300)
        assert reader.seen.done


def test_after_the_first_answer_event_every_byte_goes_out_at_once() -> None:
    reader = SseReader(drop_progress=True)
    assert reader.feed(progress(100) + b"data: {") == b""
    assert reader.feed(b'"a":1}\n\ndata: {"b') == b'data: {"a":1}\n\ndata: {"b'
    assert reader.seen.started
    for byte in b'":2}\n':
        assert reader.feed(bytes([byte])) == bytes([byte])


def test_a_partial_event_held_at_the_end_still_goes_out() -> None:
    reader = SseReader(drop_progress=True)
    assert reader.feed(b"data: {unfinished") == b""
    assert reader.finish() == b"data: {unfinished"
    assert not reader.seen.done


def test_windows_line_ends_comments_and_several_data_lines_are_read() -> None:
    stream = (
        b": hello\r\n\r\n"
        b'event: message\r\nid: 7\r\ndata: {"choices":[],\r\n'
        b'data: "usage":{"prompt_tokens":9,"completion_tokens":3}}\r\n\r\n'
        b"data: [DONE]\r\n\r\n"
    )
    for at in range(len(stream) + 1):
        out, reader = read(cut(stream, at), drop=True)
        assert out == stream
        assert reader.seen.prompt_tokens == 9
        assert reader.seen.completion_tokens == 3
        assert reader.seen.cached_tokens is None
        assert reader.seen.done


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}, (5, None, 1)),
        (
            {
                "choices": [{"finish_reason": "stop", "delta": {}}],
                "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
                "unknown": {"deep": [1]},
            },
            (5, 4, None),
        ),
        ({"choices": [{"finish_reason": "stop", "delta": {}}]}, (None, None, None)),
        ({"usage": "none", "timings": [1], "choices": None}, (None, None, None)),
        ({"usage": {"prompt_tokens": -3, "completion_tokens": True}}, (None, None, None)),
    ],
)
def test_usage_is_read_where_it_is_and_never_needed(
    final: dict[str, object], expected: tuple[int | None, ...]
) -> None:
    """Field report R25."""
    _, reader = read([ANSWER[1], event(json.dumps(final)), event("[DONE]")], drop=True)
    seen = reader.seen
    assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == expected
    assert seen.done


def test_the_native_final_event_ends_the_stream_and_names_the_slot() -> None:
    partial = {"content": "x", "tokens": [5], "stop": False, "id_slot": -1, "tokens_evaluated": 9}
    final = {"content": "", "stop": True, "id_slot": 2, "timings": TIMINGS, "tokens_evaluated": 300}
    _, reader = read([event(json.dumps(partial))], drop=True)
    assert not reader.seen.done
    assert reader.seen.id_slot is None
    _, reader = read([event(json.dumps(partial)), event(json.dumps(final))], drop=True)
    assert reader.seen.done
    assert reader.seen.id_slot == 2
    assert reader.seen.generated == 1


def test_text_that_looks_like_an_end_is_no_end() -> None:
    _, reader = read([event(delta(content='"stop":true [DONE]'))], drop=True)
    assert not reader.seen.done
    assert reader.seen.error is None


def test_an_event_that_differs_from_the_last_one_only_in_its_text_is_counted_like_it() -> None:
    texts = ["a", "timings", '"timings"', '"}}],"usage":{}', "b\n\n", "\\", "[DONE]", "", "c", "d"]
    stream = b"".join(event(delta(content=text)) for text in texts)
    stream += event(json.dumps({"choices": [{"delta": {"content": "e"}}], "timings": TIMINGS}))
    stream += event(delta(reasoning_content="f")) + event(delta(content="g")) + event("[DONE]")
    for at in range(len(stream) + 1):
        out, reader = read(cut(stream, at), drop=True)
        assert out == stream
        assert reader.seen.generated == len([text for text in texts if text]) + 3
        assert reader.seen.completion_tokens == 2
        assert reader.seen.error is None
        assert reader.seen.done


def test_an_error_event_is_told_in_both_spellings() -> None:
    error = {"error": {"code": 500, "message": "Compute error."}}
    _, reader = read([event(json.dumps(error))], drop=True)
    assert reader.seen.error == "Compute error."
    _, reader = read([b'error: {"message": "old"}\n\n'], drop=True)
    assert reader.seen.error == "old"


def test_a_huge_event_is_passed_on_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.proxy.engine.sse.MAX_HELD_BYTES", 1000)
    reader = SseReader(drop_progress=True)
    big = event("x" * 2500)
    out = b"".join(reader.feed(big[i : i + 300]) for i in range(0, len(big), 300))
    assert out == big
    assert reader.feed(b"".join(ANSWER)) == b"".join(ANSWER)
    assert reader.seen.done
