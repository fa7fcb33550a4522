"""The FastAPI application: which routes there are, and what stands around them.

Knows no stage. Bodies pass through as bytes in both directions: nothing is validated or
serialised by pydantic here, and the middleware is plain ASGI.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import REGISTRY, CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ingress.answers import error_response
from ingress.gateway import Gateway
from ingress.guards import ApiKeys, Counted, ResponseHeaders
from ingress.http_metrics import HttpMetrics
from ingress.probes import Readiness, Route, fleet_version, probe_routes
from ingress.relay import Relay, refuse
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
) -> FastAPI:
    """An application over a gateway that its caller starts and closes.

    `is_scale_out` is what `ingress.scale_out` decided; off, those routes answer 403.
    """
    app = FastAPI(title="tokenfleet", version=fleet_version())
    relayed = _relayed(Relay(settings, limits, gateway), mode, is_scale_out)
    for method, path, endpoint in relayed:
        app.router.add_api_route(path, endpoint, methods=[method], route_class_override=_Direct)
    others = [
        *probe_routes(model, gateway, readiness, registry),
        *unserved_routes(mode, is_scale_out=is_scale_out),
    ]
    for method, path, endpoint in others:
        app.add_api_route(path, endpoint, methods=[method])
    paths = (path for _, path, _ in (*relayed, *others))
    metrics = HttpMetrics(registry, paths)
    gateway.watch_in_flight(metrics.in_flight)
    _surround(app, settings, metrics)
    return app


class _Direct(APIRoute):
    """An endpoint that takes the request and gives the response: nothing to inject or serialise."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


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


def _surround(app: FastAPI, settings: IngressSettings, metrics: HttpMetrics) -> None:
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(StoreError, _on_store_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    # The last one added is the outermost.
    app.add_middleware(ApiKeys, keys=settings.api_key)
    app.add_middleware(ResponseHeaders, request_ids=settings.enable_request_id_headers)
    app.add_middleware(Counted, metrics=metrics)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_store_error(request: Request, error: Exception) -> Response:
    return error_response(
        ApiError(
            "The answer could not be read from the store; try again in a moment.",
            status=503,
            type="ServiceUnavailableError",
        )
    )


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # for the figures: nobody reads it


async def _on_bug(request: Request, error: Exception) -> Response:
    return error_response(ApiError("Internal server error", status=500, type="InternalServerError"))
