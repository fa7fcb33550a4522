"""What a transport must offer: partitions, groups, explicit commits and redelivery.

Implementations: `runtime.bus.memory` and `runtime.bus.kafka`, chosen by URL in `open_bus`.
Values are opaque bytes here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from runtime.errors import SettingsError
from runtime.settings import FleetSettings
from schemas.topics import Topics


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record as read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    """Of several with one name the last counts, as `lastHeader` of Kafka's clients; one without
    a value counts as not given. What is not UTF-8 in a name is written as `\\xff`."""
    timestamp_ms: int = 0
    """As the producer or the broker set it: any number."""
    is_broker_time: bool = False
    """Whether the broker set it, when it appended the record (Kafka's LogAppendTime)."""
    received_ms: float = field(default_factory=lambda: time.time() * 1000, compare=False)
    """When this process got it, Unix milliseconds."""
    unreadable: str = ""
    """Not empty: the records up to this offset cannot be read, and why. Nothing else is set."""

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def record_bytes(record: "Record | Outgoing") -> int:
    """What a record weighs against limits: key, value and headers, in bytes or nearly so."""
    size = len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers.items():
        size += len(name) + len(value)
    return size


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to write. Without `partition` the key decides, as in Kafka."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    partition: int | None = None
    give_up_ms: float | None = None
    """Unix milliseconds after which nobody waits for it; None: it is tried until it is written."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What the transport says about a topic that exists."""

    num_partitions: int
    max_message_bytes: int
    """Largest batch of records it takes, framing included; `max.message.bytes` in Kafka."""
    is_internal: bool
    """Kafka's own, such as `__consumer_offsets`."""


class RebalanceListener(Protocol):
    """Told by a consumer in a group; both calls are awaited before records flow again."""

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None: ...

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None: ...


class Consumer(Protocol):
    """Reads records; commits only what it is told to commit."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Leave the group at once. Commits nothing. Safe to call twice."""

    async def poll(self, *, max_records: int, timeout_s: float) -> list[Record]:
        """Records of partitions that are not paused; empty after the time-out."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Next offset to read, per partition. Raise OwnershipLost when the partition moved."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def end_offset(self, partition: TopicPartition) -> int | None:
        """One past the newest record known of; None before anything is known."""

    def position(self, partition: TopicPartition) -> int | None:
        """Below it everything has been given out by `poll`, or is no record. None: not known."""


class Bus(Protocol):
    """A connection to the transport, shared by everything in a process."""

    cluster_id: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, record: Outgoing) -> tuple[int, int]:
        """Return (partition, offset) once acknowledged. Raise BusError otherwise."""

    def consumer(
        self, topics: Sequence[str], *, group: str, listener: RebalanceListener | None = None
    ) -> Consumer:
        """A member of a group; a new group starts at the earliest record."""

    def reader(self, partition: TopicPartition, *, start: int | None = None) -> Consumer:
        """Reads one partition without a group, from an offset, or from its end at `start()`."""

    async def num_partitions(self, topic: str) -> int:
        """Raise BusError where there is no such topic."""

    async def topic_info(self, topic: str) -> TopicInfo | None:
        """None: no such topic, or a name that none can have. Never creates it.

        May be some seconds old. Raises BusError where the broker cannot be asked.
        """

    async def create_topics(self, topics: Sequence[str], *, num_partitions: int) -> list[str]:
        """Create those that are missing and return their names."""


def open_bus(url: str, settings: FleetSettings) -> Bus:
    """The bus a URL names, not yet started. SettingsError where the URL names none."""
    # Imported late: the implementations need the protocol above, and memory:// no Kafka client.
    servers = servers_of(url)
    topics = Topics(settings.topic_prefix)
    if not servers:
        from runtime.bus.memory import MemoryBus

        return MemoryBus(num_partitions=settings.num_partitions, topics=topics)
    from runtime.bus.kafka import KafkaBus

    return KafkaBus(servers, topics=topics, session_timeout_ms=settings.session_timeout_ms)


def servers_of(url: str) -> list[str]:
    """`host:port` of every broker; none for memory://. SettingsError for any other URL."""
    parts = urlsplit(url)
    if parts.scheme == "memory" and not parts.netloc + parts.path.strip("/"):
        return []
    if parts.scheme == "kafka" and not parts.path.strip("/"):
        return [_require_server(server, url) for server in parts.netloc.split(",")]
    raise SettingsError(f"--bus {url!r}: use memory:// or kafka://host:port[,host:port]")


def _require_server(server: str, url: str) -> str:
    host, colon, port = server.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise SettingsError(f"--bus {url!r}: {server!r} is not host:port")
    return server
