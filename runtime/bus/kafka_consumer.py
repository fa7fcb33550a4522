"""A consumer on aiokafka: a member of a group, or a reader of one partition.

Created by `runtime.bus.kafka`; knows nothing of producing.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from runtime.bus import RebalanceListener, Record, TopicPartition
from runtime.bus.kafka_errors import translated
from runtime.bus.kafka_fetch import ScreenedFetches
from runtime.bus.record_batches import MARK
from runtime.errors import BusError

# How long a poll may take beyond its time-out: aiokafka waits there for a rebalance to end.
_GRACE_S = 0.2
_LOG_APPEND_TIME = 1


class KafkaConsumer:
    """Owned by who asked the bus for it; `start` and `stop` once."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        topics: Sequence[str] = (),
        listener: RebalanceListener | None = None,
        partition: TopicPartition | None = None,
        offset: int | None = None,
    ) -> None:
        self._options = options
        self._topics = topics
        self._listener = listener
        self._read = (partition, offset)
        self._consumer: AIOKafkaConsumer | None = None
        self._fetches: ScreenedFetches | None = None
        self._is_settled = asyncio.Event()  # cleared while the listener is being told
        self._is_settled.set()

    async def start(self) -> None:
        self._consumer = consumer = AIOKafkaConsumer(**self._options)
        self._fetches = ScreenedFetches(consumer)
        try:
            with translated():
                await self._join(consumer)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        fetches, self._fetches = self._fetches, None
        if consumer is None or fetches is None:
            return
        try:
            with translated():
                await consumer.stop()
        finally:
            fetches.close()

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        if self._consumer is None:
            return []
        with translated():
            try:
                async with asyncio.timeout(timeout_s + _GRACE_S):
                    await self._is_settled.wait()
                    taken = await self._consumer.getmany(
                        timeout_ms=max(int(timeout_s * 1000), 0), max_records=max_records
                    )
            except TimeoutError:
                return []
        if taken:
            # aiokafka has the new assignment, and may fetch, a moment before the listener knows.
            await self._is_settled.wait()
        return [_record(message) for messages in taken.values() for message in messages]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._topics:
            raise BusError("a reader without a group has nothing to commit", retriable=False)
        if self._consumer is None:
            raise BusError("the consumer is stopped", retriable=False)
        with translated():
            await self._consumer.commit({KafkaPartition(*p): n for p, n in offsets.items()})

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        if self._consumer is not None:
            self._consumer.pause(*self._owned(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        if self._consumer is not None:
            self._consumer.resume(*self._owned(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        if self._consumer is None:
            return frozenset()
        return frozenset(TopicPartition(*p) for p in self._consumer.assignment())

    def end_offset(self, partition: TopicPartition) -> int | None:
        if self._consumer is None or partition not in self._consumer.assignment():
            return None
        end: int | None = self._consumer.highwater(KafkaPartition(*partition))
        return end

    def position(self, partition: TopicPartition) -> int | None:
        if self._consumer is None or partition not in self._consumer.assignment():
            return None
        # `position` of the consumer waits for one, and may do so for long.
        assignment = self._consumer._subscription.subscription.assignment
        state = assignment.state_value(KafkaPartition(*partition))
        position: int | None = state.position if state.has_valid_position else None
        return position

    async def _join(self, consumer: AIOKafkaConsumer) -> None:
        partition, offset = self._read
        if partition is None:
            listener = _Listener(self._listener, self._is_settled) if self._listener else None
            consumer.subscribe(self._topics, listener=listener)
            await consumer.start()
            return
        source = KafkaPartition(*partition)
        consumer.assign([source])
        await consumer.start()
        if offset is None:
            await consumer.seek_to_end(source)
        else:
            consumer.seek(source, offset)

    def _owned(self, partitions: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """Those still ours; aiokafka refuses others, and a rebalance may just have taken them."""
        assert self._consumer is not None
        return [KafkaPartition(*p) for p in self._consumer.assignment() & set(partitions)]


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """Hands aiokafka's calls on. On a first join nothing is revoked, and nothing said."""

    def __init__(self, listener: RebalanceListener, is_settled: asyncio.Event) -> None:
        self._listener = listener
        self._is_settled = is_settled

    async def on_partitions_revoked(self, revoked: set[KafkaPartition]) -> None:
        self._is_settled.clear()
        if revoked:
            await self._listener.revoked([TopicPartition(*p) for p in sorted(revoked)])

    async def on_partitions_assigned(self, assigned: set[KafkaPartition]) -> None:
        try:
            await self._listener.assigned([TopicPartition(*p) for p in sorted(assigned)])
        finally:
            self._is_settled.set()


def sticky_assignor() -> type[StickyPartitionAssignor]:
    """One subclass per consumer: aiokafka keeps a member's assignment on the class."""
    return type("OwnStickyAssignor", (StickyPartitionAssignor,), {})


def _record(message: Any) -> Record:
    marks = [value for name, value in message.headers if name == MARK]
    headers = {name: value for name, value in dict(message.headers).items() if value is not None}
    return Record(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers={} if marks else headers,
        timestamp_ms=message.timestamp,
        is_broker_time=message.timestamp_type == _LOG_APPEND_TIME,
        unreadable=marks[0].decode() if marks else "",
    )
