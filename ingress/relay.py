"""One HTTP request through the gateway: body in, outcome out. Knows no route and no stage."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ingress.answers import outcome_response
from ingress.bodies import read_json_body, until_disconnect
from ingress.gateway import Gateway
from ingress.scale_out import DISABLED
from runtime.settings import IngressSettings
from schemas.checks import check_request
from schemas.envelope import Caller, Outcome, now_ms
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.refusals import not_implemented
from schemas.routes import Kind
from schemas.validation import parse_body

Endpoint = Callable[[Request], Awaitable[Response]]

STREAMING = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.GENERATE})
"""Kinds whose answer is an event stream when the body asks for one."""


class Relay:
    """Makes the endpoints of an application; holds nothing of a request."""

    def __init__(self, settings: IngressSettings, limits: ModelLimits, gateway: Gateway) -> None:
        self._settings = settings
        self._limits = limits
        self._gateway = gateway

    def endpoint(self, kind: Kind) -> Endpoint:
        async def relay(request: Request) -> Response:
            self._gateway.require_place()
            body = await read_json_body(request, self._settings.max_body_bytes)
            if kind in STREAMING and b'"stream"' in body:
                await asyncio.to_thread(refuse_stream, kind, body, self._limits)
            work = self._submit(kind, body, request)
            del body  # may be large, and is not needed while we wait
            outcome = await _while_connected(request, work)
            return outcome_response(outcome, self._gateway.blobs)

        return relay

    def _submit(self, kind: Kind, body: bytes, request: Request) -> Coroutine[Any, Any, Outcome]:
        return self._gateway.submit(
            kind,
            body,
            Caller(request_id=request.headers.get("x-request-id")),
            int(now_ms() + self._settings.request_timeout_s * 1000),
            pin=self._settings.generate_stage if kind is Kind.GENERATE else None,
        )


async def refuse(request: Request) -> Response:
    """The endpoint of every scale-out route on a server that has them switched off."""
    raise ApiError(DISABLED, status=403, type="PermissionDeniedError")


def refuse_stream(kind: Kind, raw: bytes, limits: ModelLimits) -> None:
    """ApiError 501 for a valid body that asks for an event stream, 400 for an invalid one."""
    try:
        is_asked = orjson.loads(raw).get("stream") not in (None, False)
    except (ValueError, AttributeError):
        return  # for the coordinator to refuse
    if not is_asked:
        return
    body = parse_body(kind, raw, limits)
    check_request(kind, body, limits)
    if getattr(body, "stream", False):
        raise not_implemented("Streaming is not supported yet: leave `stream` out.")


async def _while_connected(request: Request, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Await the work, but cancel it and raise ClientDisconnect as soon as the client has gone."""
    waiter = asyncio.current_task()
    assert waiter is not None
    is_over = False

    def leave(watch: "asyncio.Future[None]") -> None:
        if not is_over and not watch.cancelled():
            waiter.cancel()

    gone = asyncio.ensure_future(until_disconnect(request))
    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done() or waiter.uncancel() > 0:
            raise  # by somebody else
        raise ClientDisconnect from None
    finally:
        is_over = True
        gone.cancel()
