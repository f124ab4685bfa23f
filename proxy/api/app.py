"""The routes: what llama-server's clients call, each answered, passed on, or clearly refused.

Nothing that generates reaches an engine unpinned: a path that llama-server knows and slotwise does
not place is a 501 that names what works.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slotwise.proxy.api import lanes_page
from slotwise.proxy.api.auth import ApiKeys
from slotwise.proxy.api.body import ClientGoneError, read_body
from slotwise.proxy.api.cors import Cors
from slotwise.proxy.api.generate import GenerationServices, Relay, Settings
from slotwise.proxy.api.status import Live, RequestsPages, overview
from slotwise.proxy.chat.request import Kind, choose_profile, parse
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, ProxyError, internal_error, unreachable
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile


def models_answer(driver: Driver) -> dict[str, Any]:
    """All profiles, each under its name and its aliases."""
    entries = [entry for p in driver.profiles.values() for entry in _entries(driver, p)]
    described = [
        _described(driver.engines.models.get(p.name), p.name) for p in driver.profiles.values()
    ]
    return {
        "object": "list",
        "data": entries,
        # llama-server gives this second list, in another vendor's form, beside the first.
        "models": [entry for entry in described if entry is not None],
    }


def _entries(driver: Driver, profile: ServedProfile) -> Iterator[dict[str, Any]]:
    own = _first(driver.engines.models.get(profile.name), "data") or {
        "object": "model",
        "created": 0,
        "owned_by": "llamacpp",
    }
    names = [profile.name, *profile.aliases]
    n_ctx = driver.scheduler.largest_window(profile.name)
    meta = own.get("meta")
    for name in names:
        entry = {**own, "id": name, "aliases": names}
        if isinstance(meta, dict) and n_ctx is not None:
            entry["meta"] = {**meta, "n_ctx": n_ctx}
        yield entry


def _described(answer: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    own = _first(answer, "models")
    return None if own is None else {**own, "name": name, "model": name}


def _first(answer: Mapping[str, Any] | None, field: str) -> dict[str, Any] | None:
    """The one model that a llama-server tells of."""
    listed = answer.get(field) if isinstance(answer, Mapping) else None
    one = listed[0] if isinstance(listed, list) and listed else None
    return one if isinstance(one, dict) else None


GENERATING = {
    "/v1/chat/completions": Kind.CHAT,
    "/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETION,
    "/completions": Kind.COMPLETION,
    "/completion": Kind.COMPLETION,
    "/infill": Kind.INFILL,
}
PASSED_ON = ("/tokenize", "/detokenize", "/apply-template")
NOT_PLACED = (
    "/v1/responses",
    "/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/embeddings",
    "/embedding",
    "/v1/rerank",
    "/v1/reranking",
    "/rerank",
    "/reranking",
    "/v1/systemone",
    "/slots",
    "/lora-adapters",
)
"""llama-server's own paths that would run, move or empty what a slot holds."""

NOT_PLACED_BELOW = (
    "/v1/audio/{rest:path}",
    "/v1/messages/{rest:path}",
    "/v1/responses/{rest:path}",
    "/v1/chat/completions/{rest:path}",
    "/chat/completions/{rest:path}",
    "/v1/images/{rest:path}",
    "/v1/stream{rest:path}",
    "/slots/{rest:path}",
    "/api/{rest:path}",
)
_PASS_TIMEOUT_S = 60.0
_ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE"]

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    driver: Driver,
    keys: Mapping[str, str],
    *,
    first_comment_s: float = 2.0,
    comment_every_s: float = 15.0,
    max_body_bytes: int | None = None,
    cors_origins: Sequence[str] = (),
) -> App:
    """The whole proxy as an ASGI application.

    ``keys``: name of a key -> the key; none: everybody may ask. The times are those of the comment
    lines that a streaming client gets while it waits. ``cors_origins``: whose web pages may read
    the answers. ``app.live.close()`` ends the streams of open pages, which would hold up the end
    otherwise.
    """
    settings = Settings(first_comment_s, comment_every_s)
    if max_body_bytes is not None:
        settings = Settings(first_comment_s, comment_every_s, max_body_bytes)
    services = GenerationServices(driver, settings=settings)
    live = Live(driver)
    generating = {path: Relay(services, kind, path) for path, kind in GENERATING.items()}
    pages = Starlette(
        routes=_routes(services, generating, live, has_keys=bool(keys)),
        exception_handlers={
            HTTPException: _http_error,
            ProxyError: _proxy_error,
            Exception: _internal_error,
        },
    )
    pages.router.redirect_slashes = False
    gate = ApiKeys(pages, keys, generating)
    return App(Cors(gate, cors_origins) if cors_origins else gate, live)


class App:
    """The layers as one, and the streams of open pages."""

    def __init__(self, layers: ASGIApp, live: Live) -> None:
        self._layers = layers
        self.live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._layers(scope, receive, send)


def _routes(
    services: GenerationServices, generating: Mapping[str, Relay], live: Live, has_keys: bool
) -> list[BaseRoute]:
    pages = Pages(services)
    requests = RequestsPages(services.driver, has_keys)
    get: dict[str, Handler] = {
        "/v1/models": pages.models,
        "/models": pages.models,
        "/v1/models/{model:path}": pages.model,
        "/props": pages.props,
        "/health": pages.health,
        "/v1/health": pages.health,
        "/health/ready": pages.ready,
        "/metrics": pages.metrics,
        "/slotwise/status": pages.status,
        "/slotwise/requests": requests.listed,
        "/slotwise/requests/{id}": requests.one,
    }
    routes: list[BaseRoute] = [
        Route(path, relay, methods=["POST"]) for path, relay in generating.items()
    ]
    routes += [Route(path, page, methods=["GET"]) for path, page in get.items()]
    routes += [Route("/slotwise/events", live, methods=["GET"]), *lanes_page.routes()]
    routes += [Route(path, PassOn(services, path), methods=["POST"]) for path in PASSED_ON]
    routes += [
        Route(path, _not_placed, methods=_ANY_METHOD) for path in NOT_PLACED + NOT_PLACED_BELOW
    ]
    return routes


class Pages:
    """What the proxy answers itself."""

    def __init__(self, services: GenerationServices) -> None:
        self._services = services
        self._driver = services.driver

    async def models(self, request: Request) -> Response:
        return _json(models_answer(self._driver))

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        for entry in models_answer(self._driver)["data"]:
            if entry["id"] == name:
                return _json(entry)
        served = ", ".join(self._driver.names)
        text = f"model: {name!r:.80} is not served, expected one of {served}"
        raise ProxyError(404, "model_not_found", text, param="model")

    async def props(self, request: Request) -> Response:
        model = request.query_params.get("model")
        profile = choose_profile({"model": model}, self._driver.names)
        client = _ready_client(self._driver, profile)
        return await _passed(client, "GET", "/props", None)

    async def health(self, request: Request) -> Response:
        """Alive. Whether it can serve is asked at ``/health/ready``."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        driver = self._driver
        profiles = {
            name: {"ready": driver.engines.ready(name) is not None, "engines": _lives(driver, name)}
            for name in driver.profiles
        }
        # A small model that gave way, or that nobody has asked for, keeps nobody else waiting.
        absent = driver.scheduler.memory.unloaded.keys() & driver.memory.roles.keys()
        is_ready = all(reported["ready"] or name in absent for name, reported in profiles.items())
        status = "ok" if is_ready else "not ready"
        return _json({"status": status, "profiles": profiles}, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        driver = self._driver
        scheduler = driver.scheduler
        await driver.metrics.engines.refresh(driver.engines.serving())
        now = driver.clock()
        driver.metrics.sync(
            scheduler.waiting(now), scheduler.slots(), scheduler.profile_figures(now)
        )
        for profile, status in driver.tokenizer.job_statuses().items():
            encoding, rendering = (part.state == "local" for part in status)
            driver.metrics.tokens_local(profile, encoding, rendering)
        driver.memory.sync(driver.metrics.memory)
        body, content_type = await driver.metrics.exposition_in_turns()
        return Response(body, headers={"Content-Type": content_type})

    async def status(self, request: Request) -> Response:
        """All that is decided on, and no word of any prompt."""
        return _json(overview(self._driver))


class PassOn:
    """Endpoints that compute nothing on a slot: the engine's answer as it is."""

    def __init__(self, services: GenerationServices, path: str) -> None:
        self._driver = services.driver
        self._limit_bytes = services.settings.max_body_bytes
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(scope, receive, self._limit_bytes)
        except ClientGoneError:
            return
        profile = choose_profile(await parse(raw), self._driver.names)
        client = _ready_client(self._driver, profile)
        response = await _passed(client, "POST", self._path, raw)
        await response(scope, receive, send)


async def _passed(client: EngineClient, method: str, path: str, raw: bytes | None) -> Response:
    try:
        answer = await client.exchange(method, path, raw, _PASS_TIMEOUT_S)
    except EngineUnreachableError as error:
        raise unreachable(error) from None
    content_type = answer.headers.get("content-type", "application/json")
    return Response(answer.content, answer.status_code, {"Content-Type": content_type})


def _ready_client(driver: Driver, profile: str) -> EngineClient:
    life = driver.engines.ready(profile)
    if life is None or life.client is None:
        text = driver.engines.not_ready_text(profile)
        raise ProxyError(503, "engine_loading", text, retry_after_s=10)
    return life.client


def _lives(driver: Driver, profile: str) -> dict[str, dict[str, Any]]:
    lives = driver.engines.of_profile(profile)
    return {life.name: {"state": life.state, "text": life.text} for life in lives}


async def _not_placed(request: Request) -> Response:
    works = ", ".join(GENERATING)
    text = f"{request.url.path} is not served by slotwise yet; what works: {works}"
    raise ProxyError(501, "not_supported", text)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals in the shape of all the others."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        known = ProxyError(404, "not_found", f"{request.url.path} is not known")
    elif error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        text = f"{request.method} is not allowed on {request.url.path}, expected {allow}"
        known = ProxyError(405, "method_not_allowed", text, headers={"Allow": allow})
    else:
        known = ProxyError(error.status_code, "http_error", str(error.detail))
    return await _proxy_error(request, known)


async def _internal_error(request: Request, error: Exception) -> Response:
    """The answer; the error itself goes on to the gate, which logs it."""
    return await _proxy_error(request, internal_error())


async def _proxy_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)
    headers = {"Content-Type": error.content_type, **error.headers}
    return Response(error.body(), error.status, headers)


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
