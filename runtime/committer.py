"""Commits what a loop has finished, batched, and reports how far it lags.

Decides nothing about offsets (`offsets` does) and knows neither records nor handlers.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from runtime.bus import Consumer, TopicPartition
from runtime.errors import BusError, OwnershipLost
from runtime.offsets import OffsetTracker
from runtime.telemetry import RoleTelemetry

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


class Committer:
    """Owned by a loop; holds the trackers of the partitions that are ours."""

    def __init__(
        self,
        consumer: Consumer,
        telemetry: RoleTelemetry,
        *,
        interval_s: float,
        on_commit: Callable[[], None],
    ) -> None:
        self.is_held = False
        """Between revocation and assignment the bus refuses commits: they wait."""
        self._consumer = consumer
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._on_commit = on_commit
        self._trackers: dict[TopicPartition, OffsetTracker] = {}
        self._has_news = asyncio.Event()

    def tracker(self, partition: TopicPartition) -> OffsetTracker | None:
        """None where the partition is not ours."""
        return self._trackers.get(partition)

    def distances(self) -> Mapping[TopicPartition, int]:
        return {partition: tracker.distance for partition, tracker in self._trackers.items()}

    def assign(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """These are ours now; return those that were and are not. Progress of the rest goes on."""
        lost = self._trackers.keys() - set(partitions)
        for partition in lost:
            del self._trackers[partition]
            self._telemetry.lost(partition)
        for tracker in self._trackers.values():
            tracker.restart()
        for partition in partitions:
            self._trackers.setdefault(partition, OffsetTracker())
        self.is_held = False
        self.wake()
        return lost

    def advance(self) -> None:
        """Note how far reading has gone; all that was given out has to be taken before."""
        for partition, tracker in self._trackers.items():
            position = self._consumer.position(partition)
            if position is not None:
                tracker.advance(position)
                if tracker.due() is not None:
                    self.wake()

    def wake(self) -> None:
        """Something is finished."""
        self._has_news.set()

    async def commit_regularly(self) -> None:
        """At once after a quiet time, then at most once per interval. A routine: never returns."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if not self.is_held:
                await self._commit()
            await asyncio.sleep(self._interval_s)

    async def commit_now(self) -> None:
        """For a revocation and the end; bounded, and never an error."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._commit()
        except (TimeoutError, BusError) as error:
            logger.warning("commit_failed", extra={"error": repr(error)})

    async def _commit(self) -> None:
        trackers = dict(self._trackers)  # a rebalance may replace them meanwhile
        due = {p: n for p, tracker in trackers.items() if (n := tracker.due()) is not None}
        if not due:
            return
        try:
            await self._consumer.commit(due)
        except OwnershipLost as error:
            # Normal around a rebalance: who has the partition now does the work again.
            logger.info("commit_refused", extra={"error": str(error)})
            return
        except BusError as error:
            if not error.retriable:
                raise
            logger.warning("commit_failed", extra={"error": repr(error)})
            self.wake()
            return
        for partition, offset in due.items():
            trackers[partition].commit(offset)
        self._report_lag()
        self._on_commit()

    def _report_lag(self) -> None:
        for partition, tracker in self._trackers.items():
            end = self._consumer.end_offset(partition)
            if end is not None and tracker.committed is not None:
                self._telemetry.lag(partition, max(end - tracker.committed, 0))
