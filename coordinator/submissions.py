"""Turns records of the public `requests` topic into envelopes to admit. Pure.

A record is a line in OpenAI's Batch form, or a bare JSON body whose kind its shape tells; nothing
else is believed, whatever its headers say. Whatever cannot be read still gives an envelope, so
that its producer is answered.
"""

import json
import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from runtime.bus import Record
from schemas.envelope import REQUEST, Caller, Envelope, ReplyTo
from schemas.errors import ApiError
from schemas.json_size import is_light, num_values
from schemas.limits import MAX_VALUES
from schemas.routes import URL_OF_KIND, Kind
from schemas.topics import MAX_REQUEST_RECORD_BYTES, Topics, is_topic_name

MAX_CUSTOM_ID = 1024
"""Characters. Longer ones are refused, and repeated cut."""
MAX_KEY_BYTES = 64 * 1024
MAX_NAME_BYTES = 1024
"""Of the headers `idempotency-key` and `x-tenant`."""
MAX_ECHOED_BYTES = 1024
"""Of one header's value that an answer repeats; of all of them four times as much."""
ALWAYS_ECHOED = ("correlationId", "correlation-id", "traceparent", "tracestate")
"""Spring's and everybody else's correlation, and W3C Trace Context."""

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
_RENDERS = {Kind.CHAT_RENDER, Kind.COMPLETION_RENDER, Kind.RESPONSES_RENDER, Kind.MESSAGES_RENDER}
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*("(?:[^"\\]|\\.){0,4096}")')


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
    """From when the record was received to its deadline, where it does not say less."""
    trusted_tenants: bool = False
    echo_headers: tuple[str, ...] = ()
    """Names of headers that answers repeat, beside `ALWAYS_ECHOED`."""


def read_submission(record: Record, rules: SubmissionRules) -> Submission:
    """Never raises for what a record holds."""
    received_ms = received_at_ms(record)
    envelope = Envelope(
        id=request_id(record, rules),
        kind=Kind.CHAT,
        created_ms=received_ms,
        deadline_ms=received_ms + int(rules.timeout_s * 1000),
        caller=Caller(
            source=f"{record.topic}/{record.partition}/{record.offset}",
            headers=echoed_headers(record, rules.echo_headers),
        ),
        reply=ReplyTo(via="topic"),
        parts={REQUEST: record.value or b""},
    )
    try:
        _take_custom_id_of(envelope, record.value or b"")
        _take_headers(envelope, record, rules)
        _take_body(envelope, record.value or b"")
    except ApiError as error:
        return Submission(envelope, error)
    return Submission(envelope)


def received_at_ms(record: Record) -> int:
    """When the broker appended the record, or else when this process got it.

    A producer's own clock (CreateTime) is not asked: it may be wrong by any amount.
    """
    received_ms = int(record.received_ms)
    if not record.is_broker_time or record.timestamp_ms <= 0:
        return received_ms
    return min(record.timestamp_ms, received_ms)


def request_id(record: Record, rules: SubmissionRules) -> str:
    """The same id for every delivery of the same record, or of the same idempotency key."""
    key = record.headers.get("idempotency-key")
    if key is not None and len(key) <= MAX_NAME_BYTES:
        name = f"key/{_tenant(record, rules)}/{key.hex()}"
    else:
        name = f"{rules.cluster_id}/{record.topic}/{record.partition}/{record.offset}"
    return uuid.uuid5(_NAMESPACE, name).hex


def echoed_headers(record: Record, names: tuple[str, ...]) -> dict[str, bytes]:
    """The headers by which a pipeline knows its requests again, within bounds."""
    found: dict[str, bytes] = {}
    left = 4 * MAX_ECHOED_BYTES
    for name in (*ALWAYS_ECHOED, *names):
        value = record.headers.get(name)
        if value is not None and len(value) <= min(MAX_ECHOED_BYTES, left):
            found[name] = value
            left -= len(value)
    return found


def _take_headers(envelope: Envelope, record: Record, rules: SubmissionRules) -> None:
    """Where the answer goes, and how it is known there, comes first: refusals need both."""
    is_short = record.key is not None and len(record.key) <= MAX_KEY_BYTES
    envelope.caller.key = record.key if is_short else None
    if (raw := record.headers.get("reply-to")) is not None:
        envelope.reply.topic = _reply_topic(raw, rules.topics)
    if record.key is not None and not is_short:
        raise _too_long("key", len(record.key), MAX_KEY_BYTES)
    for name in ("idempotency-key", "x-tenant"):
        if len(value := record.headers.get(name, b"")) > MAX_NAME_BYTES:
            raise _too_long(name, len(value), MAX_NAME_BYTES)
    envelope.caller.tenant = _tenant(record, rules)
    if (raw := record.headers.get("x-request-timeout")) is not None:
        timeout_s = min(_timeout_s(raw), rules.timeout_s)
        envelope.deadline_ms = envelope.created_ms + int(timeout_s * 1000)


def _tenant(record: Record, rules: SubmissionRules) -> str:
    if not rules.trusted_tenants:
        return ""
    return record.headers.get("x-tenant", b"")[:MAX_NAME_BYTES].decode("utf-8", "replace")


def _reply_topic(raw: bytes, topics: Topics) -> str:
    name = raw[:250].decode("utf-8", "replace")
    if not is_topic_name(name) or topics.is_inside(name):
        raise reply_refused(name, "it must be a topic of yours")
    return name


def reply_refused(name: str, why: str) -> ApiError:
    return ApiError(f"reply-to {name[:80]!r} cannot be used: {why}", param="reply-to")


def _timeout_s(raw: bytes) -> float:
    try:
        timeout_s = float(raw[:40])
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise ApiError(
            f"x-request-timeout must be a positive number of seconds, got {raw[:40]!r}",
            param="x-request-timeout",
        )
    return timeout_s


def _too_long(name: str, size: int, limit: int) -> ApiError:
    return ApiError(f"{name} of {size} bytes is longer than {limit}", param=name)


def _take_body(envelope: Envelope, value: bytes) -> None:
    """Set kind and request part.

    What is not JSON stays a chat: the body parser refuses it as HTTP would.
    """
    if len(value) > MAX_REQUEST_RECORD_BYTES:
        envelope.parts[REQUEST] = b""
        raise ApiError(
            f"a record of {len(value)} bytes is larger than {MAX_REQUEST_RECORD_BYTES}; send large"
            " media by URL",
            status=413,
            type="RequestEntityTooLarge",
        )
    body = _decoded(value)
    if not isinstance(body, dict):
        return
    if "url" in body and "body" in body:
        line, body = body, body["body"]
        _take_batch_line(envelope, line)
        envelope.parts[REQUEST] = _dumped(body)
    else:
        envelope.kind = kind_of_body(body)
    if isinstance(body, dict):
        _leave_tensors_out(envelope, body)


def _decoded(value: bytes) -> object:
    """As lenient as can be, to find out what is meant; what is wrong is told by its own parser."""
    if not is_light(value) and num_values(value, MAX_VALUES) > MAX_VALUES:
        return None
    try:
        decoded: object = from_json(value)
    except ValueError:
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return decoded


def _dumped(body: object) -> bytes:
    """Text that decodes to the same, NaN and lone surrogates included."""
    try:
        return json.dumps(body, separators=(",", ":")).encode()
    except (ValueError, RecursionError):  # nested, or an integer, beyond what is printed
        raise ApiError("There was an error parsing the body", type="Bad Request") from None


def _take_custom_id_of(envelope: Envelope, value: bytes) -> None:
    """Of a line that cannot be decoded as a whole, too: its producer waits for this id."""
    if (found := _CUSTOM_ID.search(value)) is not None:
        try:
            envelope.caller.custom_id = _shown(json.loads(found[1]))
        except ValueError:
            return


def _take_batch_line(envelope: Envelope, line: Mapping[str, Any]) -> None:
    custom_id = line.get("custom_id")
    envelope.caller.custom_id = _shown(custom_id) if isinstance(custom_id, str) else None
    if custom_id is not None:
        _check_custom_id(custom_id)
    if str(line.get("method", "POST")).upper() != "POST":
        raise ApiError("method must be POST", param="method")
    url = line["url"]
    kind = _KIND_OF_URL.get(url) if isinstance(url, str) else None
    if kind is None:
        raise ApiError(f"url must be one of {', '.join(sorted(_KIND_OF_URL))}", param="url")
    envelope.kind = kind


def _check_custom_id(custom_id: object) -> None:
    if not isinstance(custom_id, str):
        raise ApiError("custom_id must be a string", param="custom_id")
    if len(custom_id) > MAX_CUSTOM_ID:
        raise ApiError(
            f"custom_id of {len(custom_id)} characters is longer than {MAX_CUSTOM_ID}",
            param="custom_id",
        )
    if _shown(custom_id) != custom_id:
        raise ApiError("custom_id holds half of a surrogate pair", param="custom_id")


def _shown(custom_id: str) -> str:
    """What an answer can repeat of it."""
    return custom_id[:MAX_CUSTOM_ID].encode("utf-8", "replace").decode()


def kind_of_body(body: Mapping[str, Any]) -> Kind:
    """What a bare body asks for, by its shape."""
    for key, kind in _KIND_OF_KEY:
        if key in body:
            return kind
    keys = ", ".join(key for key, _ in _KIND_OF_KEY)
    raise ApiError(
        f"the body's shape is unknown: it needs one of {keys}", type="Bad Request", param="body"
    )


def _leave_tensors_out(envelope: Envelope, body: dict[str, Any]) -> None:
    """A render over topics gives no tensors unless asked for."""
    if envelope.kind in _RENDERS and not {"mm_payload", "return_mm_kwargs"} & body.keys():
        envelope.parts[REQUEST] = _dumped({**body, "mm_payload": "none"})
