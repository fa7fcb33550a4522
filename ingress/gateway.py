"""Puts a request on the bus and waits for its outcome. Knows neither HTTP nor what a body holds."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from ingress.pending import PendingReplies, Replies
from ingress.replies import ReplyReader, reply_partition
from runtime.bus import Bus, Outgoing, TopicPartition
from runtime.delivery import failure, outcome_name, packed_outcome
from runtime.errors import BusError, StoreAway, StoreError
from runtime.grants import grant
from runtime.stage import Job
from runtime.storage import BlobStore
from schemas.envelope import (
    CONTENT_TYPE,
    REQUEST,
    BlobRef,
    Caller,
    Envelope,
    Outcome,
    ReplyTo,
    now_ms,
)
from schemas.errors import ApiError
from schemas.ids import random_id
from schemas.records.control import CONTROL_PARTITION, Abort
from schemas.records.reply import StreamPiece
from schemas.routes import Kind
from schemas.topics import Topics

logger = logging.getLogger(__name__)

_STORE_AWAY_S = 10.0
_STORE_PAUSE_S = 0.25
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
        self._aborting: set[asyncio.Task[None]] = set()

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
        await asyncio.gather(*self._aborting, return_exceptions=True)
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

    @asynccontextmanager
    async def ask(
        self,
        kind: Kind,
        raw_body: bytes,
        caller: Caller,
        deadline_ms: int,
        *,
        pin: str | None = None,
        request_id: str | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> "AsyncGenerator[Answer, None]":
        """Send a request and give its answer, to be read inside the block.

        `on_sent` is called once the fleet has the body.

        ApiError 504 at the deadline, 503 where the fleet is full or cannot be reached.

        Who leaves the block early leaves nothing behind: the fleet is told to stop.
        """
        envelope = self._envelope(kind, raw_body, caller, deadline_ms, pin, request_id)
        del raw_body  # may be large, and is in the store or on the bus while we wait
        # Before sending: the reply may be there before `send` returns.
        with self._pending.waiting(envelope.id) as replies:
            async with _until(deadline_ms):
                await self._send(envelope)
            if on_sent is not None:
                on_sent()
            answer = Answer(replies, deadline_ms)
            try:
                yield answer
            finally:
                if not answer.is_complete:
                    self._abandon(envelope.id, deadline_ms)

    def _abandon(self, request_id: str, deadline_ms: int) -> None:
        task = asyncio.create_task(self._abort(request_id, deadline_ms))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _abort(self, request_id: str, deadline_ms: int) -> None:
        """End the request with an outcome of its own, and stop who works on it."""
        outcome = failure(_cancelled())
        abort = Abort(id=request_id, deadline_ms=deadline_ms)
        topic, key = self._topics.control, request_id.encode()
        record = Outgoing(topic, key, abort.encode(), partition=CONTROL_PARTITION)
        try:
            await self._bus.send(record)
            await self.blobs.put_if_absent(outcome_name(request_id), packed_outcome(outcome))
        except (BusError, StoreError) as error:  # the deadline ends it, then
            logger.warning("abort_failed", extra={"error": str(error)})

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
            await self._store(envelope)
            envelope.sent_ms = now_ms()
            await self._bus.send(
                Outgoing(self._topics.admissions, envelope.id.encode(), envelope.encode(), _HEADERS)
            )
        except (BusError, StoreError) as error:
            raise _unreachable() from error

    async def _store(self, envelope: Envelope) -> None:
        """Put a large body into the store. One that is away for a moment is waited for."""
        give_up_at = time.monotonic() + _STORE_AWAY_S
        while True:
            try:
                await Job(envelope, self.blobs).pack()
                if isinstance(body := envelope.parts[REQUEST], BlobRef):
                    await grant(self.blobs, envelope.id, body)
                return
            except StoreAway:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(_STORE_PAUSE_S)


class Answer:
    """The replies to one request as its caller waits for them."""

    def __init__(self, replies: Replies, deadline_ms: int) -> None:
        self._replies = replies
        self._deadline_ms = deadline_ms
        self.is_complete = False
        """Whether its outcome was read."""

    async def next(self) -> StreamPiece | Outcome:
        """A piece of the answer, or its outcome, the last of all. ApiError 504 at the deadline."""
        async with _until(self._deadline_ms):
            reply = await self._replies.next()
        self.is_complete = isinstance(reply, Outcome)
        return reply


@asynccontextmanager
async def _until(deadline_ms: int) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout((deadline_ms - now_ms()) / 1000):
            yield
    except TimeoutError:
        raise _too_late() from None


def _cancelled() -> ApiError:
    return ApiError(
        "The client left before the request was answered.",
        status=499,
        type="RequestCancelled",
    )


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
