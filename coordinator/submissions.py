"""Turns records of the public `requests` topic into envelopes to admit. Pure.

A record is an envelope of the ingress (marked by its content type), a line in OpenAI's Batch form,
or a bare JSON body whose kind its shape tells. Whatever cannot be read still gives an envelope, so
that its producer is answered.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from runtime.bus import Record
from schemas.envelope import CONTENT_TYPE, REQUEST, Caller, Envelope, ReplyTo, now_ms
from schemas.errors import ApiError, FailureCode
from schemas.routes import URL_OF_KIND, Kind
from schemas.topics import MAX_REQUEST_RECORD_BYTES, Topics

_NAMESPACE = uuid.UUID("6f2e2f0e-5d1c-5a57-9d5b-0c1f3c6a7e10")
_KIND_OF_URL = {url: kind for kind, url in URL_OF_KIND.items()}
# The shape of a bare body: the first key it has decides.
_KIND_OF_KEY = (
    ("messages", Kind.CHAT),
    ("prompt", Kind.COMPLETION),
    ("token_ids", Kind.GENERATE),
    ("generate_response", Kind.CHAT_DERENDER),
    ("generate_responses", Kind.COMPLETION_DERENDER),
    ("tokens", Kind.DETOKENIZE),
)
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_RENDERS = {Kind.CHAT_RENDER, Kind.COMPLETION_RENDER, Kind.RESPONSES_RENDER, Kind.MESSAGES_RENDER}


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to admit, or (with `error`) to refuse at once."""

    envelope: Envelope
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class SubmissionRules:
    """What the reader of outside records needs to know."""

    cluster_id: str
    topics: Topics
    timeout_s: float
    trusted_tenants: bool = False


def read_submission(record: Record, rules: SubmissionRules) -> Submission:
    """Raise DecodeError only for a record that claims to be an envelope and is none."""
    if record.headers.get("content-type") == CONTENT_TYPE.encode():
        return Submission(_untouched(Envelope.decode(record.value or b"")))
    return _outside(record, rules)


def _untouched(envelope: Envelope) -> Envelope:
    """Only what an ingress may say; everything else is decided here."""
    kept = {
        "version",
        "id",
        "kind",
        "pin",
        "created_ms",
        "deadline_ms",
        "sent_ms",
        "caller",
        "reply",
    }
    fields = {name: getattr(envelope, name) for name in kept}
    parts = {name: part for name, part in envelope.parts.items() if name == REQUEST}
    return Envelope(**fields, parts=parts)


def _outside(record: Record, rules: SubmissionRules) -> Submission:
    # A producer's clock may be ahead; it must not buy time.
    created_ms = min(record.timestamp_ms or int(now_ms()), int(now_ms()))
    envelope = Envelope(
        id=request_id(record, rules),
        kind=Kind.CHAT,
        created_ms=created_ms,
        deadline_ms=created_ms + int(rules.timeout_s * 1000),
        caller=Caller(key=record.key, tenant=_tenant(record, rules)),
        reply=ReplyTo(via="topic"),
    )
    try:
        envelope.reply = ReplyTo(via="topic", topic=_reply_topic(record, rules.topics))
        _take_body(envelope, record.value or b"")
    except ApiError as error:
        return Submission(envelope, error)
    return Submission(envelope)


def request_id(record: Record, rules: SubmissionRules) -> str:
    """The same id for every delivery of the same record, or of the same idempotency key."""
    key = record.headers.get("idempotency-key")
    if key is not None:
        name = f"key/{_tenant(record, rules)}/{key.hex()}"
    else:
        name = f"{rules.cluster_id}/{record.topic}/{record.partition}/{record.offset}"
    return uuid.uuid5(_NAMESPACE, name).hex


def _tenant(record: Record, rules: SubmissionRules) -> str:
    if not rules.trusted_tenants:
        return ""
    return record.headers.get("x-tenant", b"").decode("utf-8", "replace")


def _reply_topic(record: Record, topics: Topics) -> str | None:
    raw = record.headers.get("reply-to")
    if raw is None:
        return None
    name = raw.decode("utf-8", "replace")
    if not _TOPIC_NAME.fullmatch(name) or (
        name.startswith(topics.prefix) and name != topics.responses
    ):
        raise ApiError(f"reply-to must name a topic of yours, got {name[:80]!r}", param="reply-to")
    return name


def _take_body(envelope: Envelope, value: bytes) -> None:
    """Set kind, custom id and request part.

    Bytes that are not JSON stay a chat: the body parser refuses them as HTTP would.
    """
    if len(value) > MAX_REQUEST_RECORD_BYTES:
        raise ApiError(
            f"a record of {len(value)} bytes is larger than {MAX_REQUEST_RECORD_BYTES}; send large"
            " media by URL",
            status=413,
            type="RequestEntityTooLarge",
        )
    envelope.parts[REQUEST] = value
    try:
        body = orjson.loads(value)
    except ValueError:
        return
    if isinstance(body, dict) and "body" in body and "url" in body:
        body = _take_batch_line(envelope, body)
    elif isinstance(body, dict):
        envelope.kind = kind_of_body(body)
    if isinstance(body, dict):
        _adapt_to_topics(envelope, body)


def _take_batch_line(envelope: Envelope, line: Mapping[str, Any]) -> Any:
    custom_id = line.get("custom_id")
    envelope.caller.custom_id = custom_id if isinstance(custom_id, str) else None
    if str(line.get("method", "POST")).upper() != "POST":
        raise ApiError("method must be POST", param="method")
    kind = _KIND_OF_URL.get(str(line["url"]))
    if kind is None:
        raise ApiError(f"url must be one of {', '.join(sorted(_KIND_OF_URL))}", param="url")
    envelope.kind = kind
    envelope.parts[REQUEST] = orjson.dumps(line["body"])
    return line["body"]


def kind_of_body(body: Mapping[str, Any]) -> Kind:
    """What a bare body asks for, by its shape."""
    for key, kind in _KIND_OF_KEY:
        if key in body:
            return kind
    keys = ", ".join(key for key, _ in _KIND_OF_KEY)
    raise ApiError(
        f"the body's shape is unknown: it needs one of {keys}", type="Bad Request", param="body"
    )


def _adapt_to_topics(envelope: Envelope, body: dict[str, Any]) -> None:
    """Rules of the topic interface: no streams, and no tensors unless asked for."""
    if body.get("stream") is True:
        raise ApiError(
            "stream is not available over topics: answers are whole records",
            param="stream",
            code=FailureCode.INVALID_REQUEST,
        )
    if envelope.kind in _RENDERS and not {"mm_payload", "return_mm_kwargs"} & body.keys():
        envelope.parts[REQUEST] = orjson.dumps({**body, "mm_payload": "none"})
