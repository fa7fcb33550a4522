"""What everyone is told: partition 0 of `control`, read by every process without a group."""

from schemas.records.record import RecordModel

CONTROL_PARTITION = 0


class Abort(RecordModel):
    """Nobody waits for this request any more: whoever works on it stops, and drops what comes."""

    id: str
    """Internal request id."""
    deadline_ms: int
    """Unix milliseconds after which no record of the request is worked on anyway."""
