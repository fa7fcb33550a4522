"""One HTTP request through the gateway: body in, outcome out. Knows no route and no stage."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ingress.answers import outcome_response
from ingress.bodies import Body, BodyBudget, until_disconnect
from ingress.gateway import Gateway
from ingress.scale_out import DISABLED
from runtime.request_body import parsed
from runtime.settings import IngressSettings
from schemas.checks import check_request
from schemas.envelope import Caller, Outcome, now_ms
from schemas.errors import ApiError
from schemas.ids import random_id
from schemas.limits import MAX_REQUEST_ID, ModelLimits
from schemas.refusals import bad_request, not_implemented
from schemas.routes import Kind

Endpoint = Callable[[Request], Awaitable[Response]]

STREAMING = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.GENERATE})
"""Kinds whose answer is an event stream when the body asks for one."""


class Relay:
    """Makes the endpoints of an application; holds nothing of a request."""

    def __init__(
        self,
        settings: IngressSettings,
        limits: ModelLimits,
        gateway: Gateway,
        budget: BodyBudget,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._gateway = gateway
        self._budget = budget

    def endpoint(self, kind: Kind) -> Endpoint:
        async def relay(request: Request) -> Response:
            self._gateway.require_place()
            caller = Caller(request_id=callers_id(request))
            with self._budget.body() as body:
                raw = await body.read_json(request)
                if kind in STREAMING and asks_for_stream(raw):
                    await refuse_stream(kind, raw, self._limits)
                work = self._submit(kind, raw, caller, request, body)
                del raw  # may be large, and is not needed while we wait
                outcome = await _while_connected(request, work)
            return outcome_response(outcome, self._gateway.blobs)

        return relay

    def _submit(
        self, kind: Kind, raw: bytes, caller: Caller, request: Request, body: Body
    ) -> Coroutine[Any, Any, Outcome]:
        request.state.request_id = request_id = random_id(32)
        request.state.received_bytes = len(raw)
        return self._gateway.submit(
            kind,
            raw,
            caller,
            int(now_ms() + self._settings.request_timeout_s * 1000),
            pin=self._settings.generate_stage if kind is Kind.GENERATE else None,
            request_id=request_id,
            # A store of this process holds the body until the answer.
            on_sent=body.release if self._gateway.blobs.is_shared else None,
        )


def callers_id(request: Request) -> str | None:
    """The id that the caller gave the request. ApiError 400 for one that is too long."""
    given = request.headers.get("x-request-id")
    if given is not None and len(given) > MAX_REQUEST_ID:
        raise bad_request(
            f"X-Request-Id has {len(given)} characters; at most {MAX_REQUEST_ID} are accepted.",
            "x-request-id",
        )
    return given


async def refuse(request: Request) -> Response:
    """The endpoint of every scale-out route on a server that has them switched off."""
    raise ApiError(DISABLED, status=403, type="PermissionDeniedError")


_STREAM_KEY = b'"stream"'
_NOT_ASKED = re.compile(rb"\s*(?:[^\s:]|:\s*(?:false|null)\s*[,}])")
_MAX_LOOKS = 100


def asks_for_stream(raw: bytes) -> bool:
    """Whether a body may ask for an event stream: cheap, and certain only when it says no.

    What is no JSON object is for the coordinator to refuse.
    """
    if not raw[-_MAX_LOOKS:].rstrip().endswith(b"}"):
        return False
    position = raw.find(_STREAM_KEY)
    for _ in range(_MAX_LOOKS):
        if position < 0:
            return False
        position += len(_STREAM_KEY)
        if not _NOT_ASKED.match(raw, position):
            return True
        position = raw.find(_STREAM_KEY, position)
    return True


async def refuse_stream(kind: Kind, raw: bytes, limits: ModelLimits) -> None:
    """ApiError 501 for a valid body that asks for an event stream, 400 for an invalid one."""
    body = await parsed(kind, raw, limits)
    if not getattr(body, "stream", False):
        return
    check_request(kind, body, limits)
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
