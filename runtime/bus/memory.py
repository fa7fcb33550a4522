"""The bus inside one process: partitions, groups, explicit commits, redelivery; no broker.

The embedded default and the test double in one. All calls belong to one event loop. Memory stays
flat: what every group has committed is forgotten beyond a short tail. Knows no broker.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Mapping, Sequence

from runtime.bus import (
    Consumer,
    Outgoing,
    RebalanceListener,
    Record,
    TopicInfo,
    TopicPartition,
    record_bytes,
)
from runtime.bus.limits import max_bytes_of
from runtime.bus.memory_group import Group
from runtime.bus.memory_log import PartitionLog, Retention
from runtime.bus.partitioning import partition_for
from runtime.errors import BusError
from schemas.topics import Topics

READ = Retention(records=256, bytes=1024 * 1024)
"""Per partition, of what all groups have committed; late readers can still look back a little."""
_FULL = Retention(READ.records * 2, READ.bytes * 2)
"""Between commits, records are written without a look at who has committed what."""
UNREAD = Retention(records=4096, bytes=32 * 1024 * 1024)
"""Per partition of a topic that no group reads."""


class MemoryBus:
    """The fleet's own topics are there; others appear when they are created or read."""

    def __init__(self, *, num_partitions: int = 8, topics: Topics | None = None) -> None:
        # New with every bus: offsets start over, and request ids are derived from both.
        self.cluster_id = f"memory-{uuid.uuid4().hex}"
        self._topics = topics or Topics()
        self._own = frozenset(self._topics.all())
        self._default_partitions = num_partitions
        self._logs: dict[str, list[PartitionLog]] = {}
        self._groups: dict[str, Group] = {}
        self._consumers: dict[TopicPartition, set[MemoryConsumer]] = {}
        self._turns = itertools.count()
        self._closed = False

    async def start(self) -> None:
        self._closed = False

    async def stop(self) -> None:
        self._closed = True
        for group in self._groups.values():
            group.close()
        for consumer in set().union(*self._consumers.values()):
            consumer.wake()

    async def send(self, record: Outgoing) -> tuple[int, int]:
        if self._closed:
            raise BusError("the bus is stopped", retriable=False)
        if record.key is None and record.value is None:
            raise BusError("a record needs a key or a value", retriable=False)
        if await self.topic_info(record.topic) is None:
            raise BusError(f"there is no topic {record.topic[:249]!r}", retriable=False)
        size = record_bytes(record)
        if size > max_bytes_of(record.topic, self._topics):
            raise BusError(f"a record of {size} bytes is too large", retriable=False)
        log = self._log_for(record)
        offset = log.append(record).offset
        if log.exceeds(_FULL):
            self._forget(log)
        for consumer in self._consumers.get(log.partition, ()):
            consumer.notify(log.partition)
        return log.partition.partition, offset

    def consumer(
        self, topics: Sequence[str], *, group: str, listener: RebalanceListener | None = None
    ) -> Consumer:
        state = self._groups.get(group)
        if state is None:
            state = self._groups[group] = Group(group, lambda topic: len(self.logs(topic)))
        return MemoryConsumer(self, group=state, topics=topics, listener=listener)

    def reader(self, partition: TopicPartition, *, start: int | None = None) -> Consumer:
        return MemoryConsumer(self, partition=partition, offset=start)

    async def num_partitions(self, topic: str) -> int:
        return len(self.logs(topic))

    async def topic_info(self, topic: str) -> TopicInfo | None:
        if topic not in self._logs and topic not in self._own:
            return None
        return TopicInfo(len(self.logs(topic)), max_bytes_of(topic, self._topics), False)

    async def create_topics(self, topics: Sequence[str], *, num_partitions: int) -> list[str]:
        missing = [topic for topic in topics if topic not in self._logs]
        for topic in missing:
            self.logs(topic, num_partitions)
        return missing

    # For consumers of this bus only.

    def logs(self, topic: str, num_partitions: int | None = None) -> list[PartitionLog]:
        if topic not in self._logs:
            count = num_partitions or self._default_partitions
            self._logs[topic] = [PartitionLog(TopicPartition(topic, n)) for n in range(count)]
        return self._logs[topic]

    def log(self, partition: TopicPartition) -> PartitionLog:
        logs = self.logs(partition.topic)
        if not 0 <= partition.partition < len(logs):
            raise BusError(
                f"{partition.topic} has {len(logs)} partitions, none is {partition.partition}",
                retriable=False,
            )
        return logs[partition.partition]

    def watch(self, partition: TopicPartition, consumer: "MemoryConsumer") -> None:
        self._consumers.setdefault(partition, set()).add(consumer)

    def unwatch(self, partition: TopicPartition, consumer: "MemoryConsumer") -> None:
        self._consumers.get(partition, set()).discard(consumer)

    def committed(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._forget(self.log(partition))

    def _log_for(self, record: Outgoing) -> PartitionLog:
        logs = self.logs(record.topic)
        if record.partition is not None:
            return self.log(TopicPartition(record.topic, record.partition))
        if record.key is None:
            return logs[next(self._turns) % len(logs)]
        return logs[partition_for(record.key, len(logs))]

    def _forget(self, log: PartitionLog) -> None:
        if not log.exceeds(READ):
            return
        groups = [g for g in self._groups.values() if g.reads(log.partition.topic)]
        if not groups:
            log.forget(log.end, UNREAD)
            return
        log.forget(min(g.committed.get(log.partition, log.start) for g in groups), READ)


class MemoryConsumer:
    """A member of a group, or a reader of one partition. Owned by who asked the bus for it."""

    def __init__(
        self,
        bus: MemoryBus,
        *,
        group: Group | None = None,
        topics: Sequence[str] = (),
        listener: RebalanceListener | None = None,
        partition: TopicPartition | None = None,
        offset: int | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.topics = frozenset(topics)
        self.listener = listener
        self._bus = bus
        self._group = group
        self._read = (partition, offset)
        self._positions: dict[TopicPartition, int] = {}
        # Those that may hold unread records, whose turn it is first: a poll looks at no others.
        self._unread: dict[TopicPartition, None] = {}
        self._paused: set[TopicPartition] = set()
        self._is_held = False
        self._is_open = False
        self._waiter: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._is_open = True
        partition, offset = self._read
        if self._group:
            await self._group.join(self)
        elif partition:
            self.take({partition: self._bus.log(partition).end if offset is None else offset})

    async def stop(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._drop()
        if self._group:
            self._group.leave(self)
        self.wake()

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        give_up_at = time.monotonic() + timeout_s
        while not (records := self._collect(max_records)) and self._is_open:
            remaining_s = give_up_at - time.monotonic()
            if remaining_s <= 0:
                break
            await self._wait(remaining_s)
        return records

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._group is None:
            raise BusError("a reader without a group has nothing to commit", retriable=False)
        self._group.commit(self, offsets)
        self._bus.committed(list(offsets))

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(self._positions.keys() & set(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self.wake()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def end_offset(self, partition: TopicPartition) -> int | None:
        return self._bus.log(partition).end

    def position(self, partition: TopicPartition) -> int | None:
        return self._positions.get(partition)

    # Called by the bus and the group.

    def notify(self, partition: TopicPartition) -> None:
        self._unread[partition] = None
        self.wake()

    def wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def hold(self) -> None:
        self._is_held = True

    def take(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        self._drop()
        for partition, offset in partitions.items():
            first = self._bus.log(partition).start
            self._positions[partition] = first if offset is None else offset
            self._unread[partition] = None
            self._bus.watch(partition, self)

    def release(self) -> None:
        self._is_held = False
        self.wake()

    def _drop(self) -> None:
        for partition in self._positions:
            self._bus.unwatch(partition, self)
        self._positions.clear()
        self._unread.clear()
        self._paused.clear()

    def _collect(self, max_records: int) -> list[Record]:
        if self._is_held:
            return []
        taken: list[Record] = []
        for partition in list(self._unread):
            if partition not in self._paused and len(taken) < max_records:
                taken += self._advance(partition, max_records - len(taken))
        return taken

    def _advance(self, partition: TopicPartition, max_records: int) -> Sequence[Record]:
        log = self._bus.log(partition)
        if self._positions[partition] > log.end:  # as Kafka's reset: what is there, from its start
            self._positions[partition] = log.start
        records = log.read(self._positions[partition], max_records)
        if records:
            self._positions[partition] = records[-1].offset + 1
        del self._unread[partition]
        if self._positions[partition] < log.end:  # to the end of the line, behind the others
            self._unread[partition] = None
        return records

    async def _wait(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
