"""What goes wrong, as the bodies that OpenAI clients read.

Two kinds are raised through the shell: :class:`ProxyError` is ours and names the field, the value
and the limit; :class:`UpstreamError` is the engine's own refusal, which is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slotwise.proxy.core.events import Refuse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    502: "engine_error",
    503: "unavailable_error",
    504: "timeout_error",
}


_FOR_MEMORY = ("memory_wait_timeout", "unloaded_for_memory")


class ProxyError(Exception):
    """An answer of our own; ``extra`` joins the error object, ``headers`` the response."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    @property
    def content_type(self) -> str:
        return "application/json"

    def body(self) -> bytes:
        """The error object as one line of JSON."""
        kind = self.code if self.code.endswith("_error") else _TYPES.get(self.status)
        error = {
            "message": self.message,
            "type": kind or "server_error",
            "param": self.param,
            "code": self.code,
            **self.extra,
        }
        return orjson.dumps({"error": error})


class UpstreamError(Exception):
    """The engine answered with an error status; body and status go to the client as they are."""

    def __init__(self, status: int, content: bytes, content_type: str) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self.content = content
        self.content_type = content_type
        self.headers: dict[str, str] = {}

    @classmethod
    def told(cls, error: Mapping[str, Any]) -> UpstreamError:
        """What the engine said in a stream, as it says it in place of a whole answer."""
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        return cls(status, orjson.dumps({"error": error}), "application/json; charset=utf-8")

    def body(self) -> bytes:
        return self.content


class EngineUnreachableError(Exception):
    """The engine did not answer. ``sent``: the request may have reached it."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


def framed(error: ProxyError | UpstreamError) -> bytes:
    """The same error as one event of a stream that is open already; no end marker follows."""
    body = error.body()
    try:
        parsed = orjson.loads(body)
        usable = isinstance(parsed, dict) and "error" in parsed
    except orjson.JSONDecodeError:
        usable = False
    if not usable:
        text = body[:500].decode("utf-8", "replace")
        body = ProxyError(error.status, "engine_error", f"the engine answered: {text}").body()
        parsed = orjson.loads(body)
    return b"data: " + orjson.dumps(parsed) + b"\n\n"


def bad(param: str | None, message: str) -> ProxyError:
    """A 400 about one field of the body."""
    return ProxyError(400, "invalid_request_error", message, param=param)


def internal_error() -> ProxyError:
    """For what nobody foresaw: the log has it, the client only hears that it happened."""
    return ProxyError(500, "internal_error", "an internal error; the log of slotwise has more")


def refused(action: Refuse) -> ProxyError:
    """The scheduler's refusal as an answer."""
    extra = {"n_prompt_tokens": action.n_prompt_tokens, "n_ctx": action.n_ctx}
    headers = {"X-Slotwise-Wait": "memory"} if action.code in _FOR_MEMORY else None
    return ProxyError(
        action.status,
        action.code,
        action.message,
        retry_after_s=action.retry_after_s,
        extra={name: value for name, value in extra.items() if value is not None},
        headers=headers,
    )


def unreachable(error: EngineUnreachableError) -> ProxyError:
    return ProxyError(503, "engine_unreachable", f"{error}; try again", retry_after_s=5)
