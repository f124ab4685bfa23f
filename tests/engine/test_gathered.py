"""A whole answer through slotwise is what the engine sends whole, though it streams to slotwise."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from slotwise.bench.run import engines

# These differ from one answer to the next; slotwise names the profile as the model.
VOLATILE = ("id", "created", "timings", "model")
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 3,
            "logprobs": True,
            "top_logprobs": 2,
            "timings_per_token": True,
            "return_progress": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "json"}],
            "max_tokens": 12,
            "response_format": {"type": "json_object"},
        },
    ),
    ("/v1/completions", {"prompt": "Once upon", "max_tokens": 4, "logprobs": 2}),
    ("/completion", {"prompt": "Once upon", "n_predict": 4}),
    ("/completion", {"prompt": "Once", "n_predict": 3, "n_probs": 2, "return_tokens": True}),
    ("/completion", {"prompt": "Once", "n_predict": 40, "stop": ["e"]}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "x"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "nonsense"}},
            },
        },
    ),
]


def settled(value: Any) -> Any:
    """Without what differs from one answer to the next; floats as far as they repeat."""
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [settled(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


def answers(url: str) -> list[tuple[int, Any]]:
    found = []
    for path, fields in ASKED:
        body = {**fields, "temperature": 0, "cache_prompt": False}
        answer = httpx.post(url + path, json=body, timeout=60)
        found.append((answer.status_code, settled(answer.json())))
    return found


@pytest.mark.slow
def test_whole_answers_are_the_engines_own() -> None:
    model = engines.tiny_model()
    with engines.bare(model, ("-np", "1", "-c", "4096", "--cache-ram", "0", "--jinja")) as bare:
        theirs = answers(bare.url)
    with engines.slotwise(model, 1, 4096) as slotwise:
        ours = answers(slotwise.url)
    assert [status for status, _ in theirs].count(200) == len(ASKED) - 1
    for asked, one, other in zip(ASKED, theirs, ours, strict=True):
        assert other == one, asked
