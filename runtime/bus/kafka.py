"""The bus on a Kafka-protocol broker, by aiokafka.

Chooses every client setting in one place; knows records only as bytes.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from runtime.bus import Consumer, Outgoing, RebalanceListener, TopicInfo, TopicPartition
from runtime.bus.kafka_consumer import KafkaConsumer, sticky_assignor
from runtime.bus.kafka_errors import translated
from runtime.bus.kafka_producer import KafkaProducers
from runtime.bus.kafka_topics import KafkaTopics
from runtime.bus.limits import LARGEST_BYTES, max_bytes_of
from runtime.bus.partitioning import LONG_KEY_BYTES, partition_for
from runtime.errors import BusError, SettingsError
from schemas.topics import Topics

estimated_bytes = DefaultRecordBatchBuilder.estimate_size_in_bytes
"""Of a batch around one record: what `max.message.bytes` is about."""

RETENTION_MS = 24 * 60 * 60 * 1000
"""Of topics we create; the age limit of blobs must exceed it and the longest deadline together."""

_REQUEST_TIMEOUT_MS = 30_000
_FETCH_MAX_WAIT_MS = 50
# Members that do not come back within this after a rebalance began are left out of it.
_REBALANCE_TIMEOUT_MS = 30_000
_MIN_FETCH_BYTES = 1024 * 1024
_MAX_FETCH_BYTES = 2 * LARGEST_BYTES
_TOPIC_READY_S = 30.0
_CONNECT_S = 5.0
_ANSWER_S = 10.0


class KafkaBus:
    """One admin connection and a producer or two per process; consumers have connections too."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        topics: Topics | None = None,
        session_timeout_ms: int = 10_000,
    ) -> None:
        self.cluster_id = ""
        self._client: dict[str, Any] = {
            "bootstrap_servers": list(servers),
            "request_timeout_ms": _REQUEST_TIMEOUT_MS,
        }
        self._topics = topics or Topics()
        self._session_timeout_ms = session_timeout_ms
        self._own = frozenset(self._topics.all())
        self._producers: KafkaProducers | None = None
        self._admin: AIOKafkaAdminClient | None = None
        self._known: KafkaTopics | None = None

    async def start(self) -> None:
        self._admin = AIOKafkaAdminClient(**self._client)
        self._known = KafkaTopics(self._admin)
        try:
            await _connect(self._admin, self._client["bootstrap_servers"])
            with translated():
                self.cluster_id = (await self._admin.describe_cluster())["cluster_id"] or ""
            self._producers = KafkaProducers(self._client)
            await self._producers.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        producers, self._producers = self._producers, None
        admin, self._admin = self._admin, None
        self._known = None
        if producers is not None:
            await producers.stop()
        if admin is not None:
            with translated():
                await admin.close()

    async def send(self, record: Outgoing) -> tuple[int, int]:
        if self._producers is None or self._known is None:
            raise BusError("the bus is stopped", retriable=False)
        info = await self._known.info(record.topic)
        if (problem := why_refused(record, info)) or info is None:
            # Told anew at the next try: a topic may have been changed.
            self._known.forget(record.topic)
            raise BusError(problem or "", retriable=False)
        if record.partition is None and len(record.key or b"") > LONG_KEY_BYTES:
            record = await _placed(record, info.num_partitions)
        is_own = record.topic in self._own
        try:
            return await self._producers.send(record, is_own=is_own)
        except BusError as error:
            if self._known is not None and not (is_own and error.retriable):
                self._known.forget(record.topic)
            raise

    def consumer(
        self, topics: Sequence[str], *, group: str, listener: RebalanceListener | None = None
    ) -> Consumer:
        options = self._reading(topics) | {
            "group_id": group,
            "session_timeout_ms": self._session_timeout_ms,
            "heartbeat_interval_ms": min(self._session_timeout_ms // 4, 3000),
            "rebalance_timeout_ms": max(self._session_timeout_ms, _REBALANCE_TIMEOUT_MS),
            "partition_assignment_strategy": (sticky_assignor(),),
        }
        return KafkaConsumer(options, topics=topics, listener=listener)

    def reader(self, partition: TopicPartition, *, start: int | None = None) -> Consumer:
        return KafkaConsumer(self._reading([partition.topic]), partition=partition, offset=start)

    async def num_partitions(self, topic: str) -> int:
        info = await self.topic_info(topic)
        if info is None:
            raise BusError(f"there is no topic {topic}", retriable=False)
        return info.num_partitions

    async def topic_info(self, topic: str) -> TopicInfo | None:
        if self._known is None:
            raise BusError("the bus is stopped", retriable=False)
        return await self._known.info(topic)

    async def create_topics(self, topics: Sequence[str], *, num_partitions: int) -> list[str]:
        if self._admin is None or self._known is None:
            raise BusError("the bus is stopped", retriable=False)
        wanted = [self._new_topic(topic, num_partitions) for topic in topics]
        with translated():
            answer = await self._admin.create_topics(wanted)
            created = [entry[0] for entry in answer.topic_errors if _is_created(entry)]
            await self._wait_until_led(self._admin, created)
        for topic in created:
            self._known.forget(topic)
        return [topic for topic in topics if topic in created]

    def _new_topic(self, topic: str, num_partitions: int) -> NewTopic:
        configs = {
            "max.message.bytes": str(max_bytes_of(topic, self._topics)),
            "retention.ms": str(RETENTION_MS),
        }
        if topic == self._topics.requests:
            # Deadlines count from it: no producer's clock, and the same at every delivery.
            configs["message.timestamp.type"] = "LogAppendTime"
        # -1: as many replicas as the cluster's default says.
        return NewTopic(topic, num_partitions, -1, replica_assignments={}, topic_configs=configs)

    async def _wait_until_led(self, admin: AIOKafkaAdminClient, topics: list[str]) -> None:
        """The broker answers before every partition takes records, and sends no events."""
        give_up_at = time.monotonic() + _TOPIC_READY_S
        while topics and not all(map(_is_led, await admin.describe_topics(topics))):
            if time.monotonic() > give_up_at:
                raise BusError(f"{topics} got no leader within {_TOPIC_READY_S:g} s")
            await asyncio.sleep(0.05)

    def _reading(self, topics: Sequence[str]) -> dict[str, Any]:
        largest = max(max_bytes_of(topic, self._topics) for topic in topics)
        # Outside producers may use transactions; one that is aborted was never asked.
        is_outside = self._topics.requests in topics
        return self._client | {
            "isolation_level": "read_committed" if is_outside else "read_uncommitted",
            # Checked before aiokafka gets them, where a wrong one does not end the reading.
            "check_crcs": False,
            "fetch_max_bytes": _MAX_FETCH_BYTES,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": _FETCH_MAX_WAIT_MS,
            "max_partition_fetch_bytes": max(largest, _MIN_FETCH_BYTES),
        }


def why_refused(record: Outgoing, info: TopicInfo | None) -> str | None:
    """What makes a record one that the topic can never take; None where nothing does."""
    if record.key is None and record.value is None:
        return "a record needs a key or a value"
    if info is None:
        return f"there is no topic {record.topic[:249]!r}"
    if info.is_internal:
        return f"{record.topic} is Kafka's own"
    if record.partition is not None and not 0 <= record.partition < info.num_partitions:
        return f"{record.topic} has {info.num_partitions} partitions, none is {record.partition}"
    try:
        size = estimated_bytes(record.key, record.value, list(record.headers.items()))
    except ValueError as error:
        return f"a header that cannot be written: {error}"
    if size > info.max_message_bytes:
        return f"a record of {size} bytes; {record.topic} takes up to {info.max_message_bytes}"
    return None


async def _placed(record: Outgoing, num_partitions: int) -> Outgoing:
    """Its partition, where finding it takes too long for the event loop."""
    partition = await asyncio.to_thread(partition_for, record.key or b"", num_partitions)
    return replace(record, partition=partition)


async def _connect(admin: AIOKafkaAdminClient, servers: Sequence[str]) -> None:
    """SettingsError where none of the servers answers within a few seconds."""
    problem = f"--bus kafka://{','.join(servers)}: no broker answers there"
    give_up_at = time.monotonic() + _CONNECT_S
    # Knocked first: aiokafka logs an error for every attempt that fails.
    while not any([await _is_listening(server) for server in servers]):
        if time.monotonic() > give_up_at:
            raise SettingsError(problem)
        await asyncio.sleep(0.25)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await admin.start()
    except (KafkaError, TimeoutError) as error:
        raise SettingsError(problem) from error


async def _is_listening(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _is_created(entry: Sequence[Any]) -> bool:
    """Raise unless the topic is there now; True when it was not before."""
    error = for_code(entry[1])
    if error is TopicAlreadyExistsError:
        return False
    if error is not NoError:
        raise error(*(part for part in entry[2:3] if part))
    return True


def _is_led(topic: dict[str, Any]) -> bool:
    partitions = topic["partitions"]
    return bool(partitions) and all(p["leader"] >= 0 and not p["error_code"] for p in partitions)
