"""What llama-server's answers look like, field by field (build b11434)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from tests.stub_text import NoMediaError

Kind = Literal["chat", "text", "native"]
Json = dict[str, Any]


@dataclass
class Answer:
    """One answer in the making: what its events and its final object are made from."""

    kind: Kind
    model: str
    prompt: Any
    n_prompt: int
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    cached: int = 0
    id_slot: int = -1
    predicted: int = 0  # tokens, the end-of-turn token included
    text: str = ""
    prompt_s: float = 0.0
    predicted_s: float = 0.0

    # ------------------------------------------------------------ streamed

    def opening(self) -> Json | None:
        """The event before the first token; only chats have one."""
        role = {"role": "assistant", "content": None}
        return self._chat_event(None, role) if self.kind == "chat" else None

    def progress(self, processed: int) -> Json:
        """What ``return_progress`` adds: one whole event per prefill step."""
        if self.kind == "chat":
            event = self._chat_event(None, {"role": "assistant", "content": None})
        elif self.kind == "text":
            event = self._text_event("", None)
        else:
            event = self._native_event("", 0)
        elapsed_ms = round(self.prompt_s * 1000)
        return event | {
            "prompt_progress": {
                "total": self.n_prompt,
                "cache": self.cached,
                "processed": processed,
                "time_ms": elapsed_ms,
            }
        }

    def token(self, piece: str, token: int) -> Json:
        if self.kind == "chat":
            return self._chat_event(None, {"content": piece})
        if self.kind == "text":
            return self._text_event(piece, None)
        return self._native_event(piece, token)

    def endings(self, finish: str, usage: str, include_usage: bool) -> list[Json]:
        """The last events. ``usage``: see ``Config``; ``real`` is what llama-server does."""
        if self.kind == "native":
            return [self.native_final(finish, streamed=True, told=usage != "none")]
        told = {"usage": self.usage(), "timings": self.timings()}
        if self.kind == "text":
            last, empty = self._text_event("", finish), {**self._text_event("", None)}
            own_chunk = usage == "own_chunk"
        else:
            last, empty = self._chat_event(finish, {}), self._chat_event(None, {})
            own_chunk = usage == "own_chunk" or (usage == "real" and include_usage)
        if usage == "none":
            return [last]
        if own_chunk:
            return [last, empty | {"choices": []} | told]
        if self.kind == "chat" and usage == "real":
            return [last | {"timings": self.timings()}]
        return [last | told]

    def _chat_event(self, finish: str | None, delta: Json) -> Json:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        return {"choices": [choice], **self._stamp(), "object": "chat.completion.chunk"}

    def _text_event(self, text: str, finish: str | None) -> Json:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
        return {"choices": [choice], **self._stamp(), "object": "text_completion"}

    def _native_event(self, text: str, token: int) -> Json:
        return {
            "index": 0,
            "content": text,
            "tokens": [token],
            "stop": False,
            "id_slot": -1,  # llama-server never fills it before the end
            "tokens_predicted": self.predicted,
            "tokens_evaluated": self.n_prompt,
        }

    # ------------------------------------------------------------ whole

    def whole(self, finish: str, told: bool) -> Json:
        """The answer of a request that is not streamed; ``told``: with usage and timings."""
        if self.kind == "native":
            return self.native_final(finish, streamed=False, told=told)
        if self.kind == "chat":
            message = {"role": "assistant", "content": self.text}
            choice = {"finish_reason": finish, "index": 0, "message": message}
            body = {"choices": [choice], **self._stamp(), "object": "chat.completion"}
        else:
            body = self._text_event(self.text, finish)
        return body | ({"usage": self.usage(), "timings": self.timings()} if told else {})

    def native_final(self, finish: str, streamed: bool, told: bool) -> Json:
        final: Json = {
            "index": 0,
            "content": "" if streamed else self.text,
            "tokens": [],
            "id_slot": self.id_slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": self.predicted,
            "tokens_evaluated": self.n_prompt,
            "generation_settings": {"stream": streamed},
            "prompt": self.prompt,
            "has_new_line": False,
            "truncated": False,
            "stop_type": "limit" if finish == "length" else "eos",
            "stopping_word": "",
            "tokens_cached": self.n_prompt + self.predicted - 1,
        }
        return final | ({"timings": self.timings()} if told else {})

    # ------------------------------------------------------------ counts

    def usage(self) -> Json:
        return {
            "completion_tokens": self.predicted,
            "prompt_tokens": self.n_prompt,
            "total_tokens": self.n_prompt + self.predicted,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def timings(self) -> Json:
        """``prompt_n`` leaves out what was cached; ``usage.prompt_tokens`` counts it in."""
        evaluated = self.n_prompt - self.cached
        return {
            "cache_n": self.cached,
            "prompt_n": evaluated,
            **_speed("prompt", evaluated, evaluated, self.prompt_s),
            "predicted_n": self.predicted,
            **_speed("predicted", self.predicted, max(1, self.predicted - 1), self.predicted_s),
        }

    def _stamp(self) -> Json:
        return {
            "created": self.created,
            "id": self.id,
            "model": self.model,
            "system_fingerprint": "b0-stub",
        }


def _speed(name: str, n: int, divisor: int, seconds: float) -> Json:
    return {
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / max(1, divisor),
        f"{name}_per_second": n / seconds if seconds else 0.0,
    }


def error(code: int, message: str, kind: str = "invalid_request_error", **more: Any) -> Json:
    return {"error": {"code": code, "message": message, "type": kind, **more}}


def refusal(problem: ValueError) -> tuple[Json, int]:
    """The error and the status for a body that cannot be rendered."""
    if isinstance(problem, NoMediaError):
        return error(500, str(problem), "server_error"), 500
    return error(400, str(problem)), 400


def metrics(busy: int) -> str:
    """A few of llama-server's series; that it calls the longest sequence a counter is its own."""
    told = (
        ("prompt_tokens_total", "counter", 9),
        ("n_tokens_max", "counter", 12),
        ("predicted_tokens_seconds", "gauge", 33.5),
        ("requests_processing", "gauge", busy),
        ("requests_deferred", "gauge", 0),
    )
    return "".join(
        f"# HELP llamacpp:{name} Of the stub\n# TYPE llamacpp:{name} {kind}\n"
        f"llamacpp:{name} {value}\n"
        for name, kind, value in told
    )


def props(alias: str, slots: int, window: int) -> Json:
    return {
        "default_generation_settings": {"params": {"n_predict": -1}, "n_ctx": window},
        "total_slots": slots,
        "model_alias": alias,
        "model_path": "stub.gguf",
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": "{# chatml #}",
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "build_info": "b0-stub",
        "is_sleeping": False,
    }


def models(alias: str, window: int) -> Json:
    meta = {"vocab_type": 2, "n_vocab": 2**31, "n_ctx": window, "n_ctx_train": 131072}
    model = {
        "id": alias,
        "aliases": [alias],
        "tags": [],
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": meta,
    }
    return {"models": [{"name": alias, "model": alias}], "object": "list", "data": [model]}
