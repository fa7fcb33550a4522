"""A bus that lets somebody look at every record on its way. Changes nothing."""

from collections import defaultdict
from collections.abc import Sequence

from runtime.bus import Bus, Consumer, Outgoing, RebalanceListener, TopicInfo, TopicPartition


class Tap:
    """Stands between the roles of a process and their bus; keeps what was sent, by record key."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.cluster_id = ""
        self.sent: defaultdict[bytes, list[Outgoing]] = defaultdict(list)

    async def start(self) -> None:
        await self._bus.start()
        self.cluster_id = self._bus.cluster_id

    async def stop(self) -> None:
        await self._bus.stop()

    async def send(self, record: Outgoing) -> tuple[int, int]:
        self.sent[record.key or b""].append(record)
        return await self._bus.send(record)

    def consumer(
        self, topics: Sequence[str], *, group: str, listener: RebalanceListener | None = None
    ) -> Consumer:
        return self._bus.consumer(topics, group=group, listener=listener)

    def reader(self, partition: TopicPartition, *, start: int | None = None) -> Consumer:
        return self._bus.reader(partition, start=start)

    async def num_partitions(self, topic: str) -> int:
        return await self._bus.num_partitions(topic)

    async def topic_info(self, topic: str) -> TopicInfo | None:
        return await self._bus.topic_info(topic)

    async def create_topics(self, topics: Sequence[str], *, num_partitions: int) -> list[str]:
        return await self._bus.create_topics(topics, num_partitions=num_partitions)
