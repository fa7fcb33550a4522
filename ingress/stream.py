"""An answer that is sent as it grows: server-sent events, by WHATWG's `text/event-stream`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingress.bodies import until_disconnect
from ingress.events import Event, Events, events_of
from ingress.forwarded import Forwarded, diverged
from ingress.gateway import Answer
from schemas.envelope import Outcome
from schemas.errors import ApiError
from schemas.records.reply import StreamPiece

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Owns what its answer depends on until the last event is sent or the client has gone."""

    media_type = "text/event-stream"

    def __init__(self, first: StreamPiece, answer: Answer, resources: AsyncExitStack) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._answer = answer
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            sending = asyncio.ensure_future(self._send_all(send))
            gone = asyncio.ensure_future(until_disconnect(Request(scope, receive)))
            try:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    await sending
            finally:
                for task in (sending, gone):
                    task.cancel()
                await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(encoded(self._first, self._answer)) as events:
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def encoded(first: StreamPiece, answer: Answer) -> AsyncGenerator[bytes, None]:
    """All events but the last, those of one piece together. An error becomes an event."""
    try:
        async for events in _events(first, answer):
            if events:
                yield b"".join(map(_encode, events))
    except ApiError as error:
        yield _encode(error.body())


def _encode(event: Event) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


async def _events(first: StreamPiece, answer: Answer) -> AsyncGenerator[list[Event], None]:
    if first.head is None:
        raise diverged()
    events, forwarded = events_of(first.head), Forwarded()
    yield [*events.opening(), *_of_piece(first, events, forwarded)]
    while isinstance(reply := await answer.next(), StreamPiece):
        yield _of_piece(reply, events, forwarded)
    yield _ending(reply, events)


def _of_piece(piece: StreamPiece, events: Events, forwarded: Forwarded) -> list[Event]:
    fresh = [new for delta in piece.deltas if (new := forwarded.fresh(delta)) is not None]
    return [event for delta in fresh for event in events.delta(delta)]


def _ending(outcome: Outcome, events: Events) -> list[Event]:
    """Usage where it is asked for; of a request that failed under way, its error body."""
    if outcome.status == 200:
        return list(events.closing())
    body = b"".join(segment for segment in outcome.segments if isinstance(segment, bytes))
    return [orjson.loads(body)]
