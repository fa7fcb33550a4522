"""Puts a request on the bus and waits for its outcome. Knows neither HTTP nor what a body holds."""

import asyncio
import uuid
from collections.abc import Callable

from ingress.pending import PendingReplies
from ingress.replies import ReplyReader, reply_partition
from runtime.bus import Bus, Outgoing, TopicPartition
from runtime.errors import BusError, StoreError
from runtime.stage import Job
from runtime.storage import BlobStore
from schemas.envelope import (
    CONTENT_TYPE,
    REQUEST,
    Caller,
    Envelope,
    Outcome,
    ReplyTo,
    now_ms,
)
from schemas.errors import ApiError
from schemas.ids import random_id
from schemas.routes import Kind
from schemas.topics import Topics

_HEADERS = {"content-type": CONTENT_TYPE.encode()}


class Gateway:
    """One replica's way into the fleet and back. Outlives the HTTP server in front of it."""

    def __init__(
        self,
        bus: Bus,
        blobs: BlobStore,
        topics: Topics,
        *,
        max_pending: int,
        replica: str | None = None,
    ) -> None:
        self._bus = bus
        self.blobs = blobs
        self._topics = topics
        self._pending = PendingReplies(max_pending)
        self._replica = replica or uuid.uuid4().hex
        self._reader = ReplyReader(bus, blobs, self._pending, replica=self._replica)
        self._partition = 0

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def watch_in_flight(self, on_change: Callable[[int], None]) -> None:
        """Tell the number whenever it changes."""
        self._pending.on_change = on_change

    @property
    def is_ready(self) -> bool:
        return self._reader.is_running

    async def start(self) -> None:
        """Read the reply partition from its present end. The topics must exist."""
        num_partitions = await self._bus.num_partitions(self._topics.replies)
        self._partition = reply_partition(self._replica, num_partitions)
        await self._reader.start(TopicPartition(self._topics.replies, self._partition))

    async def close(self) -> None:
        await self._reader.close()

    async def wait(self) -> None:
        """Until replies are read no more; raises what stopped it."""
        await self._reader.wait()

    def refuse(self) -> None:
        """Answer everybody who waits or comes with 503: this process ends."""
        self._pending.close(_shutting_down())

    def require_place(self) -> None:
        """ApiError 503 where one more request could not wait: to be asked before reading it."""
        self._pending.require_place()

    async def submit(
        self,
        kind: Kind,
        raw_body: bytes,
        caller: Caller,
        deadline_ms: int,
        *,
        pin: str | None = None,
        request_id: str | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Outcome:
        """The outcome of a request; `on_sent` is called once the fleet has the body.

        ApiError 504 at the deadline, 503 where the fleet is full or cannot be reached.

        A cancelled caller leaves nothing behind here; work that is under way goes on and its
        reply is ignored.
        """
        envelope = self._envelope(kind, raw_body, caller, deadline_ms, pin, request_id)
        del raw_body  # may be large, and is in the store or on the bus while we wait
        # Before sending: the reply may be there before `send` returns.
        with self._pending.waiting(envelope.id) as outcome:
            try:
                async with asyncio.timeout((deadline_ms - now_ms()) / 1000):
                    await self._send(envelope)
                    if on_sent is not None:
                        on_sent()
                    return await outcome
            except TimeoutError:
                raise _too_late() from None

    def _envelope(
        self,
        kind: Kind,
        raw_body: bytes,
        caller: Caller,
        deadline_ms: int,
        pin: str | None,
        request_id: str | None,
    ) -> Envelope:
        now = now_ms()
        return Envelope.model_validate(
            {
                "id": request_id or random_id(32),
                "kind": kind,
                "pin": pin,
                "created_ms": int(now),
                "deadline_ms": deadline_ms,
                "caller": caller,
                "reply": ReplyTo(replica=self._replica, partition=self._partition),
                "parts": {REQUEST: raw_body},
            }
        )

    async def _send(self, envelope: Envelope) -> None:
        try:
            await Job(envelope, self.blobs).pack()
            envelope.sent_ms = now_ms()
            await self._bus.send(
                Outgoing(self._topics.requests, envelope.id.encode(), envelope.encode(), _HEADERS)
            )
        except (BusError, StoreError) as error:
            raise _unreachable() from error


def _too_late() -> ApiError:
    return ApiError(
        "The request was not answered before its deadline.",
        status=504,
        type="GatewayTimeout",
    )


def _shutting_down() -> ApiError:
    return ApiError(
        "The server is shutting down and has not finished the request; try again.",
        status=503,
        type="ServiceUnavailableError",
    )


def _unreachable() -> ApiError:
    return ApiError(
        "The request could not be handed to the fleet; try again in a moment.",
        status=503,
        type="ServiceUnavailableError",
    )
