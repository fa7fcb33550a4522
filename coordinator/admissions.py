"""Reads what ingresses write to the `admissions` topic. Pure.

That topic is closed to others by Kafka's ACLs; where it is not, nothing that is in it may do more
than a request over HTTP could: no ids, partitions, references or deadlines of somebody's choice.
"""

from runtime.bus import Record
from schemas.envelope import REQUEST, Caller, Envelope, ReplyTo
from schemas.errors import DecodeError
from schemas.limits import MAX_REQUEST_ID
from schemas.routes import Kind

MAX_DEADLINE_S = 24 * 3600.0
"""Of a request over HTTP, whatever its ingress says: as long as topics keep records."""


def read_admission(record: Record, num_reply_partitions: int) -> Envelope:
    """Only what an ingress may say; everything else is decided here.

    Raise DecodeError for what no ingress writes.
    """
    told = Envelope.decode(record.value or b"")
    _require_reply_partition(told.reply, num_reply_partitions)
    _require_short("request_id", told.caller.request_id)
    _require_short("tenant", told.caller.tenant)
    received_ms = int(record.received_ms)
    return Envelope(
        id=told.id,
        kind=told.kind,
        pin=told.pin if told.kind is Kind.GENERATE else None,
        created_ms=min(told.created_ms, received_ms),
        deadline_ms=min(told.deadline_ms, received_ms + int(MAX_DEADLINE_S * 1000)),
        sent_ms=told.sent_ms,
        caller=Caller(request_id=told.caller.request_id, tenant=told.caller.tenant),
        reply=ReplyTo(replica=told.reply.replica, partition=told.reply.partition),
        parts={name: part for name, part in told.parts.items() if name == REQUEST},
    )


def _require_reply_partition(reply: ReplyTo, num_partitions: int) -> None:
    if reply.via != "ingress" or reply.topic is not None:
        raise DecodeError("an admission is answered on the topic of replies only")
    if reply.partition >= num_partitions:
        raise DecodeError(f"there is no reply partition {reply.partition}")


def _require_short(name: str, text: str | None) -> None:
    if text is not None and len(text) > MAX_REQUEST_ID:
        raise DecodeError(f"{name} of {len(text)} characters")
