"""Measures how late the event loop wakes: heartbeats live there, what blocks it costs partitions.

Knows nobody who might block it.
"""

import asyncio
import logging
from collections import deque

from runtime.telemetry import Telemetry

logger = logging.getLogger(__name__)

_WINDOW = 40
"""Samples in the reported maximum: ten seconds of them."""


class Watchdog:
    """One per process. A routine: `run` never returns by itself."""

    def __init__(
        self, telemetry: Telemetry, *, interval_s: float = 0.25, warn_s: float = 1.0
    ) -> None:
        self._gauge = telemetry.loop_lag
        self._interval_s = interval_s
        self._warn_s = warn_s
        self._late: deque[float] = deque(maxlen=_WINDOW)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self.observe(loop.time() - due)

    def observe(self, late_s: float) -> None:
        self._late.append(max(late_s, 0.0))
        self._gauge.set(max(self._late))
        if late_s >= self._warn_s:
            logger.warning("event_loop_blocked", extra={"late_s": round(late_s, 3)})
