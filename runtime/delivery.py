"""Ends a request: writes its one outcome and addresses it to whoever waits.

The outcome is written put-if-absent, so the first one wins against redelivery, deadline and abort
(design: "A request's way" 5). Knows no stage.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgpack
import orjson
import pybase64

from runtime.bus import Bus, Outgoing, TopicInfo, record_bytes
from runtime.bus.limits import OVERHEAD_BYTES
from runtime.errors import BusError, Undeliverable, is_away
from runtime.storage import BlobStore
from schemas.envelope import Base64Of, Envelope, Outcome, ReplyTo, now_ms
from schemas.errors import ApiError, Away, FailureCode, Transient
from schemas.records.reply import Reply, StreamPiece
from schemas.topics import INLINE_LIMIT_BYTES, MAX_RECORD_BYTES, Topics

log = logging.getLogger(__name__)

REPLICA_HEADER = "replica"
REQUEST_ID_HEADER = "tokenfleet-request-id"
SOURCE_HEADER = "tokenfleet-source"

_MAX_SHORT_TEXT = 200
# Of the fleet's topics; see `runtime.bus.limits`.
_OWN_BYTES = MAX_RECORD_BYTES + OVERHEAD_BYTES
# What a batch of one record has around it, at most, and each of its headers.
_FRAMING_BYTES = 128
_HEADER_FRAMING_BYTES = 16
# A destination of the caller's gets as long, even where the deadline is over.
_MIN_PATIENCE_MS = 30_000


def outcome_name(request_id: str) -> str:
    """Name of the stored outcome, from which any replica can read it."""
    return f"outcomes/{request_id}"


def failure(error: ApiError) -> Outcome:
    """The outcome of a request that ended in an error."""
    return Outcome(
        status=error.status,
        segments=[_error_json(error.body())],
        code=error.code.value,
        message=_readable(error.message),
    )


def expired(envelope: Envelope) -> ApiError:
    return ApiError(
        f"the deadline passed before the request was answered (at {envelope.stop or 'admission'})",
        status=504,
        type="GatewayTimeout",
        code=FailureCode.DEADLINE_EXCEEDED,
    )


@contextmanager
def until_deadline(envelope: Envelope) -> Iterator[None]:
    """What is waited for inside is waited for until the request's deadline, and then looked at."""
    try:
        yield
    except (Away, BusError, Transient) as error:
        error.deadline_ms = envelope.deadline_ms
        raise


@dataclass(frozen=True, slots=True)
class Delivery:
    """Turns envelopes whose outcome is known into the last record of their way."""

    blobs: BlobStore
    topics: Topics
    max_response_bytes: int = MAX_RECORD_BYTES
    bus: Bus | None = None
    """Knows about destinations; without one, each is taken to be as the fleet's own."""

    async def deliver(self, envelope: Envelope) -> list[Outgoing]:
        """Store the outcome, or take the one stored before, and address it.

        Raise Undeliverable where its destination cannot take any answer.
        """
        if envelope.outcome is None:
            raise ValueError(f"request {envelope.id} has no outcome to deliver")
        try:
            outcome, stored = await self._settle(envelope.id, envelope.outcome)
        except Away:
            if not envelope.is_expired(now_ms()):
                raise
            # Better told twice than not before the store is back.
            outcome = failure(expired(envelope))
            stored = packed_outcome(outcome)
        if envelope.reply.via == "ingress":
            return [self._reply(envelope, outcome, len(stored))]
        return [await self._response(envelope, outcome)]

    def destination(self, envelope: Envelope) -> str:
        """Topic on which the request is answered."""
        if envelope.reply.via == "ingress":
            return self.topics.replies
        return envelope.reply.topic or self.topics.responses

    async def topic_info(self, topic: str) -> TopicInfo | None:
        """See `Bus.topic_info`."""
        if self.bus is None:
            return TopicInfo(1, _OWN_BYTES, is_internal=False)
        return await self.bus.topic_info(topic)

    async def _settle(self, request_id: str, outcome: Outcome) -> tuple[Outcome, bytes]:
        name = outcome_name(request_id)
        packed = packed_outcome(outcome)
        if await self.blobs.put_if_absent(name, packed):
            return outcome, packed
        earlier = await self.blobs.get_named(name)
        if earlier is None:  # swept between the two calls: ours is as good
            return outcome, packed
        return Outcome.model_validate(msgpack.unpackb(earlier)), earlier

    def piece(self, request_id: str, address: ReplyTo, piece: StreamPiece) -> Outgoing:
        """A part of the answer, for the ingress that waits for it."""
        return self._to_ingress(address, Reply(id=request_id, piece=piece))

    def _reply(self, envelope: Envelope, outcome: Outcome, size: int) -> Outgoing:
        reply = Reply(id=envelope.id, trace=envelope.trace)
        if size <= INLINE_LIMIT_BYTES:
            reply.outcome = outcome
        else:
            reply.outcome_name = outcome_name(envelope.id)
        return self._to_ingress(envelope.reply, reply)

    def _to_ingress(self, address: ReplyTo, reply: Reply) -> Outgoing:
        return Outgoing(
            topic=self.topics.replies,
            partition=address.partition,
            key=reply.id.encode(),
            value=reply.encode(),
            headers={REPLICA_HEADER: address.replica.encode()},
        )

    async def _response(self, envelope: Envelope, outcome: Outcome) -> Outgoing:
        """The answer, or the failure that says why it is not, whichever fits first."""
        topic = self.destination(envelope)
        limit = await self._limit_of(topic)
        if _body_size(outcome) <= self.max_response_bytes:
            answer = await self._answer(envelope, topic, outcome)
            if _batch_bytes(answer) <= limit:
                return answer
        for substitute in _substitutes(outcome, min(limit, self.max_response_bytes)):
            answer = await self._answer(envelope, topic, substitute)
            if _batch_bytes(answer) <= limit:
                return answer
        raise Undeliverable(topic, f"no answer fits into the {limit} bytes of a record there")

    async def _limit_of(self, topic: str) -> int:
        """Bytes of a record; Undeliverable where the topic is gone."""
        try:
            info = await self.topic_info(topic)
        except BusError as error:
            if is_away(error):  # writing it is what waits for the broker
                return _OWN_BYTES
            raise Undeliverable(topic, str(error)) from error
        if info is None:
            raise Undeliverable(topic, "there is no such topic")
        return info.max_message_bytes

    async def _answer(self, envelope: Envelope, topic: str, outcome: Outcome) -> Outgoing:
        body = await read_body(outcome, self.blobs)
        is_ours = topic == self.topics.responses
        patience = max(envelope.deadline_ms, now_ms() + _MIN_PATIENCE_MS)
        return Outgoing(
            topic=topic,
            key=envelope.caller.key,
            value=orjson.dumps(batch_result(envelope, outcome, body)),
            headers=answer_headers(envelope),
            give_up_ms=None if is_ours else patience,
        )


def answer_headers(envelope: Envelope) -> dict[str, bytes]:
    """By which whoever asked through a topic knows an answer, or a dead letter, again."""
    headers = {**envelope.caller.headers, REQUEST_ID_HEADER: envelope.id.encode()}
    if envelope.caller.source is not None:
        headers[SOURCE_HEADER] = envelope.caller.source.encode()
    return headers


def batch_result(envelope: Envelope, outcome: Outcome, body: bytes) -> Mapping[str, Any]:
    """A line of OpenAI's Batch output; status and body are what HTTP would have answered."""
    error = {"code": outcome.code, "message": outcome.message} if outcome.code else None
    return {
        "id": f"batch_req_{envelope.id}",
        "custom_id": envelope.caller.custom_id,
        "response": {
            "status_code": outcome.status,
            "request_id": envelope.caller.request_id or envelope.id,
            "body": orjson.Fragment(body) if body else None,
        },
        "error": error,
    }


async def read_body(outcome: Outcome, blobs: BlobStore) -> bytes:
    """The whole body of an outcome, its holes filled in."""
    pieces = [
        pybase64.b64encode(await blobs.get(s.blob)) if isinstance(s, Base64Of) else s
        for s in outcome.segments
    ]
    return b"".join(pieces)


def packed_outcome(outcome: Outcome) -> bytes:
    packed: bytes = msgpack.packb(outcome.model_dump(exclude_defaults=True))
    return packed


def _error_json(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # half a surrogate pair, quoted from the request
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _body_size(outcome: Outcome) -> int:
    return sum(
        (s.blob.size + 2) // 3 * 4 if isinstance(s, Base64Of) else len(s) for s in outcome.segments
    )


def _batch_bytes(answer: Outgoing) -> int:
    return record_bytes(answer) + _FRAMING_BYTES + _HEADER_FRAMING_BYTES * len(answer.headers)


def _substitutes(outcome: Outcome, limit: int) -> Iterator[Outcome]:
    """What to say instead of an outcome that does not fit, the longest first."""
    if outcome.code is not None:
        yield _shortened(outcome)
        return
    size = _body_size(outcome)
    yield _too_large(
        f"the response of {size} bytes is larger than the {limit} that a record may hold;"
        " ask over HTTP, or for less"
    )
    yield _too_large(f"{size} bytes > {limit}")


def _shortened(failed: Outcome) -> Outcome:
    """The same failure with the beginning of its message."""
    body = b"".join(s for s in failed.segments if isinstance(s, bytes))
    told = orjson.loads(body).get("error") or {}
    error = ApiError(
        _cut(failed.message) + "...[truncated]",
        status=failed.status,
        type=_cut(told.get("type")),
        param=_cut(told.get("param")) or None,
        code=FailureCode(failed.code or FailureCode.INTERNAL),
    )
    return failure(error)


def _cut(text: str | None) -> str:
    return (text or "")[:_MAX_SHORT_TEXT]


def _too_large(message: str) -> Outcome:
    error = ApiError(
        message,
        status=413,
        type="RequestEntityTooLarge",
        code=FailureCode.RESPONSE_TOO_LARGE,
    )
    return failure(error)
