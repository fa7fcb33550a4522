"""One partition of the memory bus: an append-only list that forgets its oldest records.

Knows no groups; who calls says up to where records may be forgotten.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.bus import Outgoing, Record, TopicPartition, record_bytes


@dataclass(frozen=True, slots=True)
class Retention:
    """What a partition keeps of records that nobody has to read any more."""

    records: int
    bytes: int


class PartitionLog:
    """Owned by the bus, read by consumers; lives as long as the topic."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.start = 0
        self.size = 0
        self._records: list[Record] = []

    @property
    def end(self) -> int:
        return self.start + len(self._records)

    def append(self, outgoing: Outgoing) -> Record:
        record = Record(
            topic=self.partition.topic,
            partition=self.partition.partition,
            offset=self.end,
            key=outgoing.key,
            value=outgoing.value,
            headers=dict(outgoing.headers),
            timestamp_ms=int(time.time() * 1000),
            is_broker_time=True,
        )
        self._records.append(record)
        self.size += record_bytes(record)
        return record

    def exceeds(self, retention: Retention) -> bool:
        return len(self._records) > retention.records or self.size > retention.bytes

    def read(self, offset: int, max_records: int) -> Sequence[Record]:
        first = max(offset - self.start, 0)
        return self._records[first : first + max_records]

    def forget(self, below: int, retention: Retention) -> None:
        """Drop the oldest records below an offset until the log is within the retention."""
        count, size = 0, self.size
        limit = min(below - self.start, len(self._records))
        while count < limit and (
            len(self._records) - count > retention.records or size > retention.bytes
        ):
            size -= record_bytes(self._records[count])
            count += 1
        del self._records[:count]
        self.start += count
        self.size = size
