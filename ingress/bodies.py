"""Reads a request's body under the rules of HTTP: media type, size, time, and memory for all.

Never looks inside.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO

from starlette.requests import Request

from schemas.errors import ApiError, FailureCode
from schemas.refusals import unsupported_media_type

SMALL_BYTES = 16 * 1024
"""The beginning of each body is free: a text is read however much others hold."""
PROGRESS_BYTES = 16 * 1024
"""What has to arrive, or the end of the body, in each `receive_timeout_s`."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What bodies may cost."""

    max_bytes: int = 256 * 1024 * 1024
    """One body."""
    max_held_bytes: int = 384 * 1024 * 1024
    """All bodies that are in memory, those that are still arriving included."""
    receive_timeout_s: float = 20.0
    total_timeout_s: float = 600.0


class BodyBudget:
    """The memory that the bodies of one server share. Used on one event loop.

    Where it is short, the largest of those that are still arriving is refused: who sends little
    never waits for who sends much and slowly.
    """

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self._arriving: set[Body] = set()

    @contextmanager
    def body(self) -> "Iterator[Body]":
        """A body to be read; what it holds is given back at the end, or by `release`."""
        body = Body(self)
        try:
            yield body
        finally:
            body.release()

    def hold(self, body: "Body", count: int) -> None:
        """ApiError 503 where there is no room and nobody who is larger."""
        self.held_bytes += count
        body.held_bytes += count
        while self.held_bytes > self.limits.max_held_bytes:
            largest = max(self._arriving, key=lambda each: each.held_bytes, default=body)
            if largest.held_bytes <= body.held_bytes:
                raise no_room()
            largest.evict()

    def arrives(self, body: "Body") -> None:
        self._arriving.add(body)

    def has_arrived(self, body: "Body") -> None:
        self._arriving.discard(body)


class Body:
    """One body, from its first byte until nobody needs it any more."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._patience: asyncio.Timeout | None = None
        self._is_evicted = False
        self.held_bytes = 0
        """Of the budget."""

    async def read_json(self, request: Request) -> bytes:
        """The body unparsed. ApiError 400 for another media type and 415 for a compressed one."""
        _require_json(request.headers.get("content-type"))
        return await self.read(request)

    async def read(self, request: Request, max_bytes: int | None = None) -> bytes:
        """As `read_json`, whatever the media type.

        ApiError 413 for one too large, 408 for one too slow, 503 where memory is short. Raise
        Starlette's ClientDisconnect where the client leaves before it is there.
        """
        _require_plain(request.headers.get("content-encoding"))
        limits = self._budget.limits
        most = min(limits.max_bytes, max_bytes or limits.max_bytes)
        _require_size(_announced_size(request), most)
        self._budget.arrives(self)
        try:
            async with asyncio.timeout(limits.receive_timeout_s) as self._patience:
                return await self._read(request, most)
        except TimeoutError:
            raise no_room() if self._is_evicted else _too_slow(limits) from None
        finally:
            self._budget.has_arrived(self)

    def evict(self) -> None:
        """Called while it is read: what it holds counts no more, and reading ends with a 503."""
        assert self._patience is not None, "it is read"
        self._is_evicted = True
        self._budget.has_arrived(self)
        self.release()
        self._patience.reschedule(asyncio.get_running_loop().time())

    def release(self) -> None:
        """Give back what it holds. Safe to call twice."""
        self._budget.held_bytes -= self.held_bytes
        self.held_bytes = 0

    async def _read(self, request: Request, most: int) -> bytes:
        size, whole = 0, b""
        buffer: BytesIO | None = None  # unlike joined pieces it hands over what it has: no copy
        clock = _Progress(self._budget.limits)
        async for piece in request.stream():
            if not piece:
                continue
            size += len(piece)
            _require_size(size, most)
            if size > SMALL_BYTES:
                self._budget.hold(self, size - SMALL_BYTES - self.held_bytes)
            if size == len(piece):
                whole = piece
                continue
            if buffer is None:
                buffer = BytesIO()
                buffer.write(whole)
            buffer.write(piece)
            if self._patience is not None and not self._is_evicted:
                clock.extend(self._patience, size)
        return whole if buffer is None else buffer.getvalue()


class _Progress:
    """Extends the patience with a body as far as it has deserved it."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._seen = 0
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + limits.total_timeout_s

    def extend(self, patience: asyncio.Timeout, size: int) -> None:
        if size - self._seen >= PROGRESS_BYTES:
            self._seen = size
            patience.reschedule(min(self._now() + self._limits.receive_timeout_s, self._end))


async def until_disconnect(request: Request) -> None:
    """Return when the client of a request whose body is read has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def no_room() -> ApiError:
    return ApiError(
        "The server holds as much of request bodies as it may; try again in a moment.",
        status=503,
        type="ServiceUnavailableError",
    )


def _too_slow(limits: BodyLimits) -> ApiError:
    return _refusal(
        408,
        "RequestTimeout",
        f"The request body did not arrive in time: at least {PROGRESS_BYTES} bytes in"
        f" {limits.receive_timeout_s:g} s, and all of it in {limits.total_timeout_s:g} s.",
    )


def _require_json(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise unsupported_media_type()


def _require_plain(encoding: str | None) -> None:
    if encoding and encoding.strip().lower() != "identity":
        raise _refusal(
            415, "UnsupportedMediaType", "Compressed bodies (content-encoding) are not accepted."
        )


def _announced_size(request: Request) -> int:
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else 0


def _require_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ApiError(
            f"The request body is larger than the {max_bytes} bytes this server accepts.",
            status=413,
            type="RequestEntityTooLarge",
        )


def _refusal(status: int, kind: str, message: str) -> ApiError:
    return ApiError(message, status=status, type=kind, code=FailureCode.INVALID_REQUEST)
