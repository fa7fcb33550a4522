"""One HTTP request through the gateway: body in, outcome out. Knows no route and no stage."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ingress.answers import outcome_response
from ingress.bodies import Body, BodyBudget, until_disconnect
from ingress.gateway import Gateway
from ingress.scale_out import DISABLED
from ingress.stream import EventStream
from runtime.settings import IngressSettings
from schemas.envelope import Caller, Outcome, now_ms
from schemas.errors import ApiError
from schemas.ids import random_id
from schemas.limits import MAX_REQUEST_ID
from schemas.refusals import bad_request
from schemas.routes import Kind

Endpoint = Callable[[Request], Awaitable[Response]]


class Relay:
    """Makes the endpoints of an application; holds nothing of a request."""

    def __init__(
        self,
        settings: IngressSettings,
        gateway: Gateway,
        budget: BodyBudget,
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._budget = budget

    def endpoint(self, kind: Kind) -> Endpoint:
        async def relay(request: Request) -> Response:
            self._gateway.require_place()
            caller = Caller(request_id=callers_id(request))
            async with AsyncExitStack() as resources:
                body = resources.enter_context(self._budget.body())
                raw = await body.read_json(request)
                work = self._ask(kind, raw, caller, request, body, resources)
                del raw  # may be large, and is not needed while we wait
                return await _while_connected(request, work)

        return relay

    async def _ask(
        self,
        kind: Kind,
        raw: bytes,
        caller: Caller,
        request: Request,
        body: Body,
        resources: AsyncExitStack,
    ) -> Response:
        """The answer's first part decides: a whole one, or the beginning of a stream."""
        request.state.request_id = request_id = random_id(32)
        request.state.received_bytes = len(raw)
        asked = self._gateway.ask(
            kind,
            raw,
            caller,
            int(now_ms() + self._settings.request_timeout_s * 1000),
            pin=self._settings.generate_stage if kind is Kind.GENERATE else None,
            request_id=request_id,
            # A store of this process holds the body until the answer.
            on_sent=body.release if self._gateway.blobs.is_shared else None,
        )
        del raw
        answer = await resources.enter_async_context(asked)
        first = await answer.next()
        if isinstance(first, Outcome):
            return outcome_response(first, self._gateway.blobs)
        return EventStream(first, answer, resources.pop_all())


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


async def _while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
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
