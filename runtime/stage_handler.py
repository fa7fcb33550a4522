"""Runs a stage over records: decode, deadline, process, claim check, on to the next stop.

The loop decides about retries and commits; the stage about the work; this only joins them.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

import orjson

from runtime.bus import Outgoing, Record
from runtime.delivery import Delivery, failure
from runtime.reporting import bind_request
from runtime.stage import Job, Stage
from schemas.envelope import CONTENT_TYPE, Envelope, Hop, now_ms
from schemas.errors import ApiError, DecodeError, EmbeddingMissing, FailureCode, Transient
from schemas.routes import Stop

log = logging.getLogger(__name__)

ENVELOPE_HEADERS = {"content-type": CONTENT_TYPE.encode()}


def expired(envelope: Envelope) -> ApiError:
    return ApiError(
        f"the deadline passed before the request was answered (at {envelope.stop or 'admission'})",
        status=504,
        type="GatewayTimeout",
        code=FailureCode.DEADLINE_EXCEEDED,
    )


def internal_error() -> ApiError:
    """What the caller sees of a fault of ours; the trace is in the log and the dead letter."""
    return ApiError("Internal server error", status=500, type="InternalServerError")


class StageHandler:
    """The loop's handler for one stage."""

    def __init__(self, stage: Stage, delivery: Delivery) -> None:
        self.stage = stage
        self.delivery = delivery

    async def handle(self, record: Record) -> Sequence[Outgoing]:
        envelope = decode_record(record)
        bind_request(envelope)
        if envelope.stop is not self.stage.stop:
            raise DecodeError(f"a record for {envelope.stop} on the topic of {self.stage.stop}")
        job = Job(envelope, self.delivery.blobs)
        hop = _Stopwatch(envelope, record)
        try:
            await self._process_in_time(job)
        except EmbeddingMissing as error:
            envelope.missing = sorted(error.hashes)
            envelope.route = [Stop.COORDINATE, *envelope.route[envelope.at :]]
            envelope.at = 0
            return [await forward(job, self.delivery)]
        except Transient as error:
            # No wait beyond it: the record comes back in time to be answered as expired.
            error.deadline_ms = envelope.deadline_ms
            raise
        except ApiError as error:
            envelope.outcome = failure(error)
        envelope.trace.append(hop.stop(self.stage.stop, job.blob_bytes))
        if envelope.outcome is not None:
            return await self.delivery.deliver(envelope)
        envelope.at += 1
        return [await forward(job, self.delivery)]

    async def _process_in_time(self, job: Job) -> None:
        left_s = (job.envelope.deadline_ms - now_ms()) / 1000
        if left_s <= 0:
            raise expired(job.envelope)
        try:
            async with asyncio.timeout(left_s):
                await self.stage.process(job)
        except TimeoutError:
            raise expired(job.envelope) from None

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        return await dead_letter(record, error, attempts, self.stage.stop, self.delivery)


def decode_record(record: Record) -> Envelope:
    if record.value is None:
        raise DecodeError("a record without value")
    return Envelope.decode(record.value)


async def forward(job: Job, delivery: Delivery) -> Outgoing:
    """The envelope on its way to the stop it is at now."""
    envelope = job.envelope
    if envelope.stop is None:
        raise ValueError(f"the route of request {envelope.id} ends without a reply")
    await job.pack()
    envelope.sent_ms = now_ms()
    return Outgoing(
        topic=delivery.topics.of(envelope.stop),
        key=envelope.id.encode(),
        value=envelope.encode(),
        headers=ENVELOPE_HEADERS,
    )


async def dead_letter(
    record: Record, error: Exception, attempts: int, stage: str, delivery: Delivery
) -> list[Outgoing]:
    """Set a record aside for people, and answer its caller where one can be read from it."""
    original = await delivery.blobs.put(record.value) if record.value else None
    code = FailureCode.UNDECODABLE if isinstance(error, DecodeError) else FailureCode.INTERNAL
    report = {
        "code": code.value,
        "stage": stage,
        "attempts": attempts,
        # The class only where the text could quote a payload.
        "error": str(error) if isinstance(error, DecodeError) else type(error).__name__,
        "source": {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
        },
        "original": original.model_dump() if original else None,
    }
    letter = Outgoing(topic=delivery.topics.dead_letter, key=record.key, value=orjson.dumps(report))
    return [letter, *await _failure_of(record, delivery)]


async def _failure_of(record: Record, delivery: Delivery) -> list[Outgoing]:
    try:
        envelope = decode_record(record)
    except DecodeError:
        return []
    envelope.outcome = failure(internal_error())
    return await delivery.deliver(envelope)


class _Stopwatch:
    def __init__(self, envelope: Envelope, record: Record) -> None:
        self._started = time.perf_counter()
        self._queue_ms = max(now_ms() - envelope.sent_ms, 0.0) if envelope.sent_ms else 0.0
        self._bytes_in = len(record.value or b"")

    def stop(self, stop: Stop, blob_bytes: int) -> Hop:
        return Hop(
            stop=stop,
            queue_ms=round(self._queue_ms, 3),
            work_ms=round((time.perf_counter() - self._started) * 1000, 3),
            bytes_in=self._bytes_in,
            blob_bytes=blob_bytes,
        )
