"""The HTTP application: which routes there are, and what stands around them.

Knows no stage. Bodies pass through as bytes in both directions: nothing is validated or
serialised by pydantic here, and everything around an endpoint is plain ASGI.
"""

from collections.abc import Mapping

from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingress.answers import error_response
from ingress.bodies import BodyBudget, BodyLimits
from ingress.gateway import Gateway
from ingress.guards import ApiKeys, Counted, ResponseHeaders
from ingress.http_metrics import HttpMetrics
from ingress.probes import Readiness, Route, fleet_version, probe_routes
from ingress.relay import Endpoint, Relay, refuse
from ingress.scale_out import Mode
from ingress.unserved import unserved_routes
from runtime.errors import StoreError
from runtime.model_dir import ModelDirectory
from runtime.settings import IngressSettings
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.routes import URL_OF_KIND, Kind

ENGINE_KINDS = (Kind.CHAT, Kind.COMPLETION)
"""Served where a model runs."""
TOKEN_KINDS = (Kind.TOKENIZE, Kind.DETOKENIZE)
SCALE_OUT_KINDS = (
    Kind.CHAT_RENDER, Kind.COMPLETION_RENDER, Kind.RESPONSES_RENDER, Kind.MESSAGES_RENDER,
    Kind.CHAT_DERENDER, Kind.COMPLETION_DERENDER,
)  # fmt: skip

CLIENT_GONE = 499
"""nginx's code for it."""


def create_app(
    settings: IngressSettings,
    model: ModelDirectory,
    limits: ModelLimits,
    gateway: Gateway,
    *,
    mode: Mode = "serve",
    is_scale_out: bool = True,
    readiness: Readiness | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> ASGIApp:
    """An application over a gateway that its caller starts and closes.

    `is_scale_out` is what `ingress.scale_out` decided; off, those routes answer 403.
    """
    budget = BodyBudget(_body_limits(settings))
    relayed = _relayed(Relay(settings, gateway, budget), mode, is_scale_out)
    others = [
        *probe_routes(model, gateway, readiness, registry),
        *unserved_routes(mode, budget, is_scale_out=is_scale_out),
    ]
    site = FastAPI(title="tokenfleet", version=fleet_version())
    for method, path, endpoint in (*relayed, *others):
        site.add_api_route(path, endpoint, methods=[method])
    for error in (*_EXPECTED, Exception):
        site.add_exception_handler(error, _on_error)
    fast = Shortcut(site, {(method, path): endpoint for method, path, endpoint in relayed})
    paths = (path for _, path, _ in (*relayed, *others))
    metrics = HttpMetrics(registry, paths)
    gateway.watch_in_flight(metrics.in_flight)
    guarded = ApiKeys(fast, keys=settings.api_key)
    return Counted(
        ResponseHeaders(guarded, request_ids=settings.enable_request_id_headers), metrics=metrics
    )


def _body_limits(settings: IngressSettings) -> BodyLimits:
    return BodyLimits(
        max_bytes=settings.max_body_bytes,
        max_held_bytes=settings.max_buffered_body_bytes,
        receive_timeout_s=settings.receive_timeout_s,
        total_timeout_s=settings.request_timeout_s,
    )


def _relayed(relay: Relay, mode: Mode, is_scale_out: bool) -> list[Route]:
    open_kinds = (*ENGINE_KINDS, *TOKEN_KINDS) if mode == "serve" else TOKEN_KINDS
    gated_kinds = (*SCALE_OUT_KINDS, Kind.GENERATE) if mode == "serve" else SCALE_OUT_KINDS
    return [
        *(("POST", URL_OF_KIND[kind], relay.endpoint(kind)) for kind in open_kinds),
        *(
            ("POST", URL_OF_KIND[kind], relay.endpoint(kind) if is_scale_out else refuse)
            for kind in gated_kinds
        ),
    ]


class Shortcut:
    """Takes the routes that carry the load straight to their endpoints, past everything that an
    application has for endpoints of other kinds; it still lists them and has all the rest."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[tuple[str, str], Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = None
        if scope["type"] == "http":
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self._app(scope, receive, send)
        else:
            await _run(endpoint, scope, receive, send)


async def _run(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """As Starlette: an error is an answer until one has begun, and a bug is raised, too."""
    request = Request(scope, receive)
    has_begun = False

    async def send_noting(message: Message) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        response = await endpoint(request)
        await response(scope, receive, send_noting)
    except Exception as error:
        if has_begun:
            raise
        await _answer_to(error)(scope, receive, send)
        if not isinstance(error, _EXPECTED):
            raise


async def _on_error(request: Request, error: Exception) -> Response:
    return _answer_to(error)


def _answer_to(error: Exception) -> Response:
    match error:
        case ApiError():
            return error_response(error)
        case StoreError():
            return error_response(_UNREADABLE)
        case ClientDisconnect():
            return Response(status_code=CLIENT_GONE)  # for the figures: nobody reads it
    return error_response(_BUG)


_EXPECTED = (ApiError, StoreError, ClientDisconnect)
_BUG = ApiError("Internal server error", status=500, type="InternalServerError")
_UNREADABLE = ApiError(
    "The answer could not be read from the store; try again in a moment.",
    status=503,
    type="ServiceUnavailableError",
)
