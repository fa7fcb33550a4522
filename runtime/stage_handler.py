"""Runs a stage over records: decode, deadline, process, claim check, on to the next stop.

The loop decides about retries and commits; the stage about the work; this only joins them.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

import orjson
import pybase64

from runtime.bus import Outgoing, Record
from runtime.delivery import (
    SOURCE_HEADER,
    Delivery,
    answer_headers,
    expired,
    failure,
    outcome_name,
    until_deadline,
)
from runtime.errors import StoreError, Undeliverable
from runtime.execution import Emit
from runtime.reporting import bind_request
from runtime.stage import Job, Stage, TokensStage
from runtime.storage import BlobStore
from schemas.envelope import CONTENT_TYPE, REFERENCE_TYPE, BlobRef, Envelope, Hop, now_ms
from schemas.errors import ApiError, Away, DecodeError, EmbeddingMissing, FailureCode
from schemas.records.derender import TOKENS_CONTENT_TYPE, TokensRecord
from schemas.records.reply import StreamPiece
from schemas.routes import Stop
from schemas.topics import MAX_RECORD_BYTES

log = logging.getLogger(__name__)

ENVELOPE_HEADERS = {"content-type": CONTENT_TYPE.encode()}
TOKENS_HEADERS = {"content-type": TOKENS_CONTENT_TYPE.encode()}
REFERENCE_HEADERS = {"content-type": REFERENCE_TYPE.encode()}


async def emit_nothing(record: Outgoing) -> None:
    """For handlers that are called by hand."""
    raise RuntimeError("nobody takes records while this handler works")


# Of a dead letter, which must fit into a record whatever it is about.
_MAX_KEY_BYTES = 1024
_MAX_INLINE_BYTES = 16 * 1024
_MAX_ERROR = 2000
# An envelope of so many entries takes milliseconds to encode.
_MANY_ENTRIES = 256


def internal_error() -> ApiError:
    """What the caller sees of a fault of ours; the trace is in the log and the dead letter."""
    return ApiError("Internal server error", status=500, type="InternalServerError")


class StageHandler:
    """The loop's handler for one stage."""

    def __init__(self, stage: Stage, delivery: Delivery) -> None:
        self.stage = stage
        self.delivery = delivery

    async def handle(self, record: Record, emit: Emit = emit_nothing) -> Sequence[Outgoing]:
        if record.headers.get("content-type") == TOKENS_HEADERS["content-type"]:
            return await self._take_tokens(record)
        envelope = await read_envelope(record, self.delivery.blobs)
        bind_request(envelope)
        if envelope.stop is not self.stage.stop:
            raise DecodeError(f"a record for {envelope.stop} on the topic of {self.stage.stop}")
        with until_deadline(envelope):
            return await self._advance(envelope, record, emit)

    async def _advance(self, envelope: Envelope, record: Record, emit: Emit) -> Sequence[Outgoing]:
        job = Job(envelope, self.delivery.blobs, RecordOutlet(self.delivery, emit))
        hop = _Stopwatch(envelope, record)
        try:
            await self._process_in_time(job)
        except EmbeddingMissing as error:
            envelope.missing = sorted(error.hashes)
            envelope.route = [Stop.COORDINATE, *envelope.route[envelope.at :]]
            envelope.at = 0
            return [await forward(job, self.delivery)]
        except ApiError as error:
            envelope.outcome = failure(error)
        envelope.trace.append(hop.stop(self.stage.stop, job.blob_bytes))
        if envelope.outcome is not None:
            return await self.delivery.deliver(envelope)
        if envelope.run is not None:
            return []  # the answer still grows: the copy that ends it goes on
        envelope.at += 1
        return [await forward(job, self.delivery)]

    async def _take_tokens(self, record: Record) -> Sequence[Outgoing]:
        tokens = TokensRecord.decode(record.value)
        if not isinstance(self.stage, TokensStage):
            raise DecodeError(f"tokens on the topic of {self.stage.stop}")
        grown = await self.stage.take_tokens(tokens)
        return [] if grown is None else [self.delivery.piece(tokens.id, *grown)]

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
        envelope = await readable_envelope(record, self.delivery.blobs)
        return await dead_letter(
            record, error, attempts, self.stage.stop, self.delivery, envelope=envelope
        )


class RecordOutlet:
    """An `Outlet` that writes records."""

    def __init__(self, delivery: Delivery, emit: Emit) -> None:
        self._delivery = delivery
        self._emit = emit

    async def send_envelope(self, envelope: Envelope) -> None:
        await self._emit(await forward(Job(envelope, self._delivery.blobs), self._delivery))

    async def send_tokens(self, tokens: TokensRecord) -> None:
        topic = self._delivery.topics.of(Stop.DERENDER)
        await self._emit(Outgoing(topic, tokens.id.encode(), tokens.encode(), TOKENS_HEADERS))

    async def send_piece(self, envelope: Envelope, piece: StreamPiece) -> None:
        await self._emit(self._delivery.piece(envelope.id, envelope.reply, piece))


def decode_record(record: Record) -> Envelope:
    """The envelope that a record holds itself. Raise DecodeError for anything else."""
    if record.value is None:
        raise DecodeError("a record without value")
    return Envelope.decode(record.value)


async def read_envelope(record: Record, blobs: BlobStore) -> Envelope:
    """The envelope that a record holds or refers to. DecodeError, or StoreError, otherwise."""
    if record.headers.get("content-type") != REFERENCE_HEADERS["content-type"]:
        return decode_record(record)
    data = await blobs.get(BlobRef.decode(record.value or b""))
    return await asyncio.to_thread(Envelope.decode, data)


async def readable_envelope(record: Record, blobs: BlobStore) -> Envelope | None:
    """None where there is no envelope to be had, now or later. Raise StoreAway while unknown."""
    try:
        return await read_envelope(record, blobs)
    except Away:
        raise
    except (DecodeError, StoreError):
        return None


async def forward(job: Job, delivery: Delivery) -> Outgoing:
    """The envelope on its way to the stop it is at now."""
    envelope = job.envelope
    if envelope.stop is None:
        raise ValueError(f"the route of request {envelope.id} ends without a reply")
    await job.pack()
    envelope.sent_ms = now_ms()
    value, headers = await _encoded(envelope), ENVELOPE_HEADERS
    if len(value) > MAX_RECORD_BYTES:
        value, headers = (await job.store(value)).encode(), REFERENCE_HEADERS
    return Outgoing(
        topic=delivery.topics.of(envelope.stop),
        key=envelope.id.encode(),
        value=value,
        headers=headers,
    )


async def _encoded(envelope: Envelope) -> bytes:
    num_entries = len(envelope.items) + len(envelope.parts) + len(envelope.held)
    if num_entries < _MANY_ENTRIES:
        return envelope.encode()
    return await asyncio.to_thread(envelope.encode)


async def dead_letter(
    record: Record,
    error: Exception,
    attempts: int,
    stage: str,
    delivery: Delivery,
    *,
    envelope: Envelope | None,
) -> list[Outgoing]:
    """Set a record aside for people, and answer its caller where its envelope is known.

    The letter needs no store. Where it is the answer that could not be written, there is none.
    """
    letter = Outgoing(
        topic=delivery.topics.dead_letter,
        key=record.key if record.key and len(record.key) <= _MAX_KEY_BYTES else None,
        value=orjson.dumps(await _report(record, error, attempts, stage, delivery, envelope)),
        headers=_letter_headers(record, envelope),
    )
    if envelope is None or _is_about_answer(error, envelope, delivery):
        return [letter]
    envelope.outcome = failure(internal_error())
    try:
        with until_deadline(envelope):
            return [letter, *await delivery.deliver(envelope)]
    except Undeliverable:
        return [letter]


async def _report(
    record: Record,
    error: Exception,
    attempts: int,
    stage: str,
    delivery: Delivery,
    envelope: Envelope | None,
) -> dict[str, object]:
    report: dict[str, object] = {
        "code": _code_of(error).value,
        "stage": stage,
        "attempts": attempts,
        "error": _told(error),
        "source": {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
        },
        "request_id": envelope.id if envelope else None,
        **await _original(record, delivery.blobs),
    }
    if isinstance(error, Undeliverable) and envelope is not None:
        report |= {"destination": error.topic, "outcome": outcome_name(envelope.id)}
    return report


def _code_of(error: Exception) -> FailureCode:
    if isinstance(error, DecodeError):
        return FailureCode.UNDECODABLE
    return FailureCode.UNDELIVERABLE if isinstance(error, Undeliverable) else FailureCode.INTERNAL


def _told(error: Exception) -> str:
    """The class only where the text could quote a payload."""
    if not isinstance(error, DecodeError | Undeliverable):
        return type(error).__name__
    return str(error)[:_MAX_ERROR].encode("utf-8", "replace").decode()


async def _original(record: Record, blobs: BlobStore) -> dict[str, object]:
    """A reference to the record's value; where the store fails, the value itself if small."""
    if not record.value:
        return {"original": None}
    try:
        return {"original": (await blobs.put(record.value)).model_dump()}
    except StoreError as error:
        log.warning("original_not_stored", extra={"error": str(error)})
    if len(record.value) > _MAX_INLINE_BYTES:
        return {"original": None, "original_lost": "the store was away, and it is too large"}
    return {"original": None, "original_base64": pybase64.b64encode(record.value).decode()}


def _letter_headers(record: Record, envelope: Envelope | None) -> dict[str, bytes]:
    here = f"{record.topic}/{record.partition}/{record.offset}".encode()
    return {SOURCE_HEADER: here} | (answer_headers(envelope) if envelope else {})


def _is_about_answer(error: Exception, envelope: Envelope, delivery: Delivery) -> bool:
    return isinstance(error, Undeliverable) and error.topic == delivery.destination(envelope)


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
