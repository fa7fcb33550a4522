"""Turns outcomes and errors into HTTP responses, byte for byte as vLLM shapes them (01-render §1).

Bodies are made elsewhere; here they are only joined, and base64 holes filled from the store.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import orjson
import pybase64
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.storage import BlobStore
from schemas.envelope import Base64Of, Outcome
from schemas.errors import ApiError

SLICE_BYTES = 768 * 1024
"""Encoded in one go and sent as one message; a multiple of three: slices join without padding."""
RETRY_AFTER_S = "1"


class JsonResponse(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def error_response(error: ApiError) -> Response:
    return JsonResponse(error.body(), status_code=error.status, headers=_headers_of(error.status))


def outcome_response(outcome: Outcome, blobs: BlobStore) -> Response:
    """The outcome's body with its holes filled; nothing is read before the response is sent."""
    headers = _headers_of(outcome.status)
    if any(isinstance(segment, Base64Of) for segment in outcome.segments):
        return SegmentsResponse(outcome, blobs)
    body = b"".join(s for s in outcome.segments if isinstance(s, bytes))
    return Response(body, outcome.status, headers, media_type="application/json")


class SegmentsResponse(Response):
    """A body with base64 holes: one blob is in memory as it is sent, and the next one being read.

    The first blob is read before the head goes out, so that a store that is away is an error body.
    One that is lost later can only end the connection early, which the content length betrays. A
    store of this process has all of them in memory: they are held, and none is lost.
    """

    media_type = "application/json"

    def __init__(self, outcome: Outcome, blobs: BlobStore) -> None:
        super().__init__(None, outcome.status, {"content-length": str(_length(outcome))})
        self._outcome = outcome
        self._blobs = blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(_pieces(self._outcome, self._blobs)) as pieces:
            piece = await anext(pieces, b"")
            head = {"type": "http.response.start", "status": self.status_code}
            await send(head | {"headers": self.raw_headers})
            async for following in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = following
            await send({"type": "http.response.body", "body": piece, "more_body": False})


async def _pieces(outcome: Outcome, blobs: BlobStore) -> AsyncGenerator[bytes, None]:
    """The body in order; the first piece comes once the first blob is there."""
    holes = [s.blob for s in outcome.segments if isinstance(s, Base64Of)]
    held = [] if blobs.is_shared else [await blobs.get(hole) for hole in holes]
    content = held[0] if held else await blobs.get(holes[0])
    for segment in outcome.segments:
        if isinstance(segment, bytes):
            yield segment
            continue
        del holes[0]
        following = asyncio.ensure_future(blobs.get(holes[0])) if holes else None
        try:
            for piece in _base64(content):
                yield piece
            content = await following if following else b""
        finally:
            if following:
                following.cancel()


def _base64(content: bytes) -> Iterator[bytes]:
    """A slice takes a fraction of a millisecond: a thread would cost more than it frees."""
    view = memoryview(content)
    for start in range(0, len(view), SLICE_BYTES):
        yield pybase64.b64encode(view[start : start + SLICE_BYTES])


def _length(outcome: Outcome) -> int:
    return sum(
        len(s) if isinstance(s, bytes) else 4 * -(-s.blob.size // 3) for s in outcome.segments
    )


def _headers_of(status: int) -> Mapping[str, str]:
    return {"retry-after": RETRY_AFTER_S} if status == 503 else {}
