"""Routes that answer by themselves: health, readiness, figures, the model list.

Nothing here waits for the fleet.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response

from ingress.answers import JsonResponse
from ingress.catalogue import model_list
from ingress.gateway import Gateway
from ingress.http_metrics import IN_FLIGHT
from runtime.model_dir import ModelDirectory

Readiness = Callable[[], Awaitable[Mapping[str, str]]]
"""What keeps the process from being ready, in words by name; nothing means ready."""
Route = tuple[str, str, Callable[..., Any]]
"""Method, path, endpoint."""


def fleet_version() -> str:
    return version("tokenfleet")


def probe_routes(
    model: ModelDirectory,
    gateway: Gateway,
    readiness: Readiness | None,
    registry: CollectorRegistry,
) -> list[Route]:
    async def health() -> Response:
        return Response(status_code=200 if gateway.is_ready else 503)

    async def ready() -> Response:
        problems = dict(await readiness()) if readiness else {}
        if not gateway.is_ready:
            problems["replies"] = "replies are not being read"
        status = 503 if problems else 200
        return JsonResponse({"ready": not problems, "problems": problems}, status)

    async def models() -> Response:
        return JsonResponse(model_list(model))

    async def load() -> Response:
        in_flight = await asyncio.to_thread(registry.get_sample_value, IN_FLIGHT)
        return JsonResponse({"server_load": int(in_flight or 0)})

    async def metrics() -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return [
        ("GET", "/health", health),
        ("GET", "/ping", health),
        ("POST", "/ping", health),
        ("GET", "/ready", ready),
        ("GET", "/v1/models", models),
        ("GET", "/load", load),
        ("GET", "/metrics", metrics),
        ("GET", "/version", _version),
        ("GET", "/kv_event_sources", _kv_event_sources),
    ]


async def _version() -> Response:
    return JsonResponse({"version": fleet_version()})


async def _kv_event_sources() -> Response:
    return JsonResponse({})
