"""The ``prompt`` of a completion: a text, token ids, or a mix of both; one prompt a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.errors import bad

_ID_LIMIT = 2**31


def raw_prompt(prompt: Any) -> str | list[str | int]:
    """One prompt: a text, ids, or a mix of both; anything else is a clear 400."""
    if isinstance(prompt, list) and len(prompt) == 1 and not _is_id(prompt[0]):
        prompt = prompt[0]  # a list of one prompt is that prompt
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        names = ", ".join(sorted(str(name) for name in prompt)) or "no fields"
        raise bad(
            "prompt",
            f"prompt: an object ({names}) is not supported through slotwise, "
            "expected a string, token ids, or a mixed list of both",
        )
    if not isinstance(prompt, list) or not prompt:
        got = "an empty list" if prompt == [] else type(prompt).__name__
        raise bad("prompt", f"prompt: expected a string or a list of token ids, got {got}")
    if any(isinstance(part, list | Mapping) for part in prompt) or all(
        isinstance(part, str) for part in prompt
    ):
        raise bad(
            "prompt",
            f"prompt: a list of {len(prompt)} prompts is not supported through slotwise, "
            "send one request for each",
        )
    for i, part in enumerate(prompt):
        if not isinstance(part, str) and not _is_id(part):
            raise bad(f"prompt[{i}]", f"prompt[{i}]: expected a token id or text, got {part!r:.60}")
    return prompt


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _ID_LIMIT
