"""All topic names, built in one place."""

import re
from dataclasses import dataclass

from schemas.routes import Stop

# One record on a topic of ours never exceeds this; larger parts are claim-checked.
MAX_RECORD_BYTES = 256 * 1024
# What an outside producer may put on `requests` in one record.
MAX_REQUEST_RECORD_BYTES = 8 * 1024 * 1024
# Inline bytes of all parts together, above which the largest go to the blob store.
INLINE_LIMIT_BYTES = 64 * 1024

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows a topic to be called so (its `Topic.validate`)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True, slots=True)
class Topics:
    """Topic names of one fleet. One prefix is one fleet is one model."""

    prefix: str = "tokenfleet."

    @property
    def requests(self) -> str:
        return self.prefix + "requests"

    @property
    def admissions(self) -> str:
        """What ingresses take over HTTP; written by nobody else."""
        return self.prefix + "admissions"

    @property
    def replies(self) -> str:
        return self.prefix + "replies"

    @property
    def responses(self) -> str:
        return self.prefix + "responses"

    @property
    def control(self) -> str:
        return self.prefix + "control"

    @property
    def dead_letter(self) -> str:
        return self.prefix + "dead-letter"

    def of(self, stop: Stop) -> str:
        """Topic that carries work for a stop (`reply` has no work topic)."""
        if stop is Stop.REPLY:
            raise ValueError("replies are addressed, not routed")
        return self.prefix + stop.value

    def all(self) -> tuple[str, ...]:
        work = tuple(self.of(stop) for stop in Stop if stop is not Stop.REPLY)
        inside = (self.admissions, *work, self.replies, self.control, self.dead_letter)
        return (self.requests, self.responses, *inside)

    def is_inside(self, topic: str) -> bool:
        """Whether a topic is the fleet's own, and not for those outside to choose."""
        if topic == self.responses:
            return False
        return topic in self.all() or (bool(self.prefix) and topic.startswith(self.prefix))
