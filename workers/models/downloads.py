"""What the downloads of one request may take together: time, bytes, memory, connections."""

import asyncio
import time
from dataclasses import dataclass, field

from workers.models.limits import Budget, MediaLimits
from runtime.shares import Claim


@dataclass(frozen=True, slots=True)
class Downloads:
    """Of one request. Belongs to its event loop."""

    budget: Budget
    deadline: float
    """time.monotonic() after which nothing goes on."""
    memory: Claim
    """On what the process has for media files."""
    turns: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    """Connections at once."""

    @property
    def left_s(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)


def downloads_of(limits: MediaLimits, memory: Claim) -> Downloads:
    """For a request that comes now."""
    return Downloads(
        Budget(limits.max_request_download_bytes, "Media downloads", status=422),
        time.monotonic() + limits.request_fetch_timeout_s,
        memory,
        asyncio.Semaphore(limits.max_fetches_per_request),
    )
