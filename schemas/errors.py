"""What can go wrong with a request, in the form that reaches its caller.

    FleetError
    ├── ApiError        the caller's answer is an error body (01-render §1); never retried
    ├── Transient       may work in a moment: the loop retries within attempts and deadline
    │   └── Busy        its turn has not come: only the deadline ends the waiting
    ├── Away            store or broker do not answer: the loop waits, which uses up no attempt
    ├── EmbeddingMissing  prefill found no embedding: the coordinator heals or refuses
    └── DecodeError     bytes that are not what the topic promises: dead letter

Knows neither HTTP frameworks nor Kafka.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any


class FailureCode(StrEnum):
    """Why a request failed. Public: codes are added, never reused (docs/failure-modes.md)."""

    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    UNPROCESSABLE_MEDIA = "unprocessable_media"
    PERMISSION_DENIED = "permission_denied"
    NOT_IMPLEMENTED = "not_implemented"
    REQUEST_TOO_LARGE = "request_too_large"
    RESPONSE_TOO_LARGE = "response_too_large"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    EMBEDDING_MISSING = "embedding_missing"
    STREAM_DIVERGED = "stream_diverged"
    CANCELLED = "cancelled"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UNDECODABLE = "undecodable"
    UNAVAILABLE = "unavailable"
    UNDELIVERABLE = "undeliverable"
    INTERNAL = "internal_error"


class FleetError(Exception):
    """Base of everything the fleet raises on purpose."""


class ApiError(FleetError):
    """The request is answered with an error body; neighbours and retries are not concerned.

    ``type``, ``param`` and ``status`` are vLLM's (01-render §1); ``code`` is ours and travels in
    records, not in HTTP bodies (there ``code`` repeats the status).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "BadRequestError",
        param: str | None = None,
        code: FailureCode | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code or _CODE_OF_STATUS.get(status, FailureCode.INTERNAL)

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.status,
            }
        }


_CODE_OF_STATUS = {
    400: FailureCode.INVALID_REQUEST,
    403: FailureCode.PERMISSION_DENIED,
    404: FailureCode.NOT_FOUND,
    413: FailureCode.REQUEST_TOO_LARGE,
    499: FailureCode.CANCELLED,
    422: FailureCode.UNPROCESSABLE_MEDIA,
    501: FailureCode.NOT_IMPLEMENTED,
    503: FailureCode.UNAVAILABLE,
    504: FailureCode.DEADLINE_EXCEEDED,
}


class Transient(FleetError):
    """May succeed when tried again.

    `retry_after_s` is the shortest wait that makes sense. A wait never goes beyond `deadline_ms`
    (Unix milliseconds): the handler is asked once more then, and answers that it is too late.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, deadline_ms: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.deadline_ms = deadline_ms


class Away(FleetError):
    """Something that every request needs does not answer now; nothing is wrong with the request.

    It waits and is tried again, however often, until `deadline_ms` (Unix milliseconds) at most: the
    handler is asked once more then, and answers that it is too late.
    """

    deadline_ms: float | None = None


class Busy(Transient):
    """Others have the places that this request needs; it waits for one without holding a slot.

    That uses up no attempt: only the deadline ends it.
    """


class EmbeddingMissing(FleetError):
    """The encoder cache does not hold the embeddings of these items (any more)."""

    def __init__(self, hashes: Iterable[str]) -> None:
        self.hashes = tuple(hashes)
        super().__init__(f"no embedding for {', '.join(self.hashes)}")


class DecodeError(FleetError):
    """Bytes that are not an envelope, item or body this version understands."""
