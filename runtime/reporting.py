"""The one log line and the figures of each try of a record. Knows no loop and no bus."""

import logging

from runtime import logs
from runtime.backlog import Work
from runtime.execution import Again, Done
from runtime.telemetry import RoleTelemetry
from schemas.envelope import Envelope

logger = logging.getLogger(__name__)


_MAX_KEY_BYTES = 64
_MAX_ID = 128
_MAX_QUEUE_S = 24 * 3600.0


def bind_record(work: Work) -> None:
    """Into the context of the task that handles it: whatever is logged there says which record."""
    record = work.record
    logs.bind(
        # Ours are shorter; somebody else's may be as large as a record.
        request_id=(record.key or b"")[:_MAX_KEY_BYTES].decode(errors="replace"),
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempt=work.attempts,
    )


def bind_request(envelope: Envelope) -> None:
    """Our id, which an outside record does not have as its key, and the caller's beside it."""
    caller = envelope.caller
    logs.bind(request_id=envelope.id)
    if (theirs := caller.request_id or caller.custom_id) is not None:
        logs.bind(caller_request_id=theirs[:_MAX_ID])


def report(
    telemetry: RoleTelemetry, work: Work, result: Done | Again | None, work_s: float
) -> None:
    """No result: the try was cancelled."""
    outcome = result.outcome if result else "cancelled"
    bytes_in, bytes_out = work.size, result.bytes_out if result else 0
    queue_s = _queue_s(work)
    telemetry.handled(outcome, work_s=work_s, bytes_in=bytes_in, bytes_out=bytes_out)
    if work.attempts == 1:
        telemetry.queued(queue_s)
    if logger.isEnabledFor(logging.INFO):
        fields = {"outcome": outcome, "bytes_in": bytes_in, "bytes_out": bytes_out}
        times = {"work_ms": round(work_s * 1e3, 3), "queue_ms": round(queue_s * 1e3, 3)}
        logger.info("record_handled", extra=fields | times)


def _queue_s(work: Work) -> float:
    """The producer's clock says when it was written, and may say anything."""
    waited_s = (work.taken_ms - work.record.timestamp_ms) / 1000
    return min(max(waited_s, 0.0), _MAX_QUEUE_S)
