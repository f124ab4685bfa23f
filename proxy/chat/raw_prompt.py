"""Prompts without a chat: of a completion, of ``/infill``; texts, token ids, or a mix of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotwise.proxy.errors import bad

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


def check_infill(body: Mapping[str, Any]) -> None:
    """The fields that the prompt of ``/infill`` is made of; a clear 400 for a wrong one."""
    for name in ("input_prefix", "input_suffix"):
        value = body.get(name)
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) or _is_id(part) for part in parts) or _is_id(value):
            got = "none" if value is None else type(value).__name__
            raise bad(name, f"{name}: expected a string or a list of texts and ids, got {got}")
    prompt = body.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise bad("prompt", f"prompt: expected a string, got {type(prompt).__name__}")
    files = body.get("input_extra")
    if files is not None and not isinstance(files, list):
        raise bad("input_extra", f"input_extra: expected a list, got {type(files).__name__}")
    for i, file in enumerate(files or ()):
        if (
            not isinstance(file, Mapping)
            or not isinstance(file.get("text"), str)
            or not isinstance(file.get("filename", ""), str)
        ):
            where = f"input_extra[{i}]"
            raise bad(where, f'{where}: expected {{"text": string, "filename": string}}')


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _ID_LIMIT
