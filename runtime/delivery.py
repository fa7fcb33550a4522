"""Ends a request: writes its one outcome and addresses it to whoever waits.

The outcome is written put-if-absent, so the first one wins against redelivery, deadline and abort
(design: "A request's way" 5). Knows no stage.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import orjson
import pybase64

from runtime.bus import Outgoing
from runtime.storage import BlobStore
from schemas.envelope import Base64Of, Envelope, Outcome, ReplyTo
from schemas.errors import ApiError, FailureCode
from schemas.records.reply import Reply, StreamPiece
from schemas.topics import INLINE_LIMIT_BYTES, MAX_RECORD_BYTES, Topics

log = logging.getLogger(__name__)

REPLICA_HEADER = "replica"


def outcome_name(request_id: str) -> str:
    """Name of the stored outcome, from which any replica can read it."""
    return f"outcomes/{request_id}"


def failure(error: ApiError) -> Outcome:
    """The outcome of a request that ended in an error."""
    return Outcome(
        status=error.status,
        segments=[orjson.dumps(error.body())],
        code=error.code.value,
        message=error.message,
    )


@dataclass(frozen=True, slots=True)
class Delivery:
    """Turns envelopes whose outcome is known into the last record of their way."""

    blobs: BlobStore
    topics: Topics
    max_response_bytes: int = MAX_RECORD_BYTES

    async def deliver(self, envelope: Envelope) -> list[Outgoing]:
        """Store the outcome, or take the one stored before, and address it."""
        if envelope.outcome is None:
            raise ValueError(f"request {envelope.id} has no outcome to deliver")
        outcome, stored = await self._settle(envelope.id, envelope.outcome)
        if envelope.reply.via == "ingress":
            return [self._reply(envelope, outcome, len(stored))]
        return [await self._response(envelope, outcome)]

    async def _settle(self, request_id: str, outcome: Outcome) -> tuple[Outcome, bytes]:
        name = outcome_name(request_id)
        packed = msgpack.packb(outcome.model_dump(exclude_defaults=True))
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
        if _body_size(outcome) > self.max_response_bytes:
            outcome = failure(_too_large(outcome, self.max_response_bytes))
        body = await read_body(outcome, self.blobs)
        return Outgoing(
            topic=envelope.reply.topic or self.topics.responses,
            key=envelope.caller.key,
            value=orjson.dumps(batch_result(envelope, outcome, body)),
        )


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


def _body_size(outcome: Outcome) -> int:
    return sum(
        (s.blob.size + 2) // 3 * 4 if isinstance(s, Base64Of) else len(s) for s in outcome.segments
    )


def _too_large(outcome: Outcome, limit: int) -> ApiError:
    return ApiError(
        f"the response of {_body_size(outcome)} bytes is larger than the {limit} that a record may"
        " hold; ask over HTTP, or for less",
        status=413,
        type="RequestEntityTooLarge",
        code=FailureCode.RESPONSE_TOO_LARGE,
    )
