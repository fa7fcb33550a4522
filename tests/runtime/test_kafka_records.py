"""What any producer may put on a topic, on a real broker: every loop and every reader goes on."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from runtime.bus import Bus, Outgoing, Record, TopicPartition, open_bus
from runtime.bus.record_batches import MAX_EXPANDED_BYTES
from runtime.errors import BusError
from runtime.kafka_local import LocalKafka, why_not
from runtime.loop import ConsumeLoop
from runtime.settings import FleetSettings
from runtime.telemetry import Telemetry
from schemas.topics import Topics
from tests.runtime.batches import CODECS, batch, bomb, record
from tests.runtime.builders import take, until
from tests.runtime.outsider import put_raw
from tests.runtime.test_loop import FAST, Echo

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def opened(servers: str, topics: Topics) -> AsyncIterator[Bus]:
    settings = FleetSettings(topic_prefix=topics.prefix, num_partitions=1, session_timeout_ms=6000)
    bus = open_bus(f"kafka://{servers}", settings)
    await bus.start()
    try:
        await bus.create_topics(topics.all(), num_partitions=1)
        yield bus
    finally:
        await bus.stop()


@pytest.fixture
async def bus(kafka_servers: str, topics: Topics) -> AsyncIterator[Bus]:
    async with opened(kafka_servers, topics) as bus:
        yield bus


class Noting(Echo):
    """Keeps the values that were handled, and what was said of those given up."""

    async def handle(self, record: Record, emit: object):
        self.started.append(record)
        return []

    async def give_up(self, record: Record, error: Exception, attempts: int):
        self.given_up.append((record.offset, error, attempts))
        return [Outgoing(self.topics.dead_letter, record.key, str(error).encode())]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.started]


@asynccontextmanager
async def looping(bus: Bus, topics: Topics, topic: str | None = None):
    handler, telemetry = Noting(topics), Telemetry()
    role = telemetry.role("workers")
    loop = ConsumeLoop(
        bus,
        [topic or topics.requests],
        group="workers",
        handler=handler,
        retry=FAST,
        telemetry=role,
    )
    await loop.start()
    try:
        yield handler, telemetry
    finally:
        await loop.stop(5)


def lag(telemetry: Telemetry, topic: str) -> float | None:
    labels = {"role": "workers", "topic": topic, "partition": "0"}
    return telemetry.registry.get_sample_value("tokenfleet_lag_records", labels)


async def test_headers_of_any_kind_are_read(bus: Bus, topics: Topics, kafka_servers: str):
    headers = [(b"note", None), (b"\xff\xfe\x80", b"1"), (b"twice", b"1"), (b"twice", b"2")]
    headers += [(b"gone", b"1"), (b"gone", None), (b"", b"")]
    await put_raw(kafka_servers, topics.requests, batch(0, [record(0, headers=headers)]))
    await put_raw(kafka_servers, topics.replies, batch(0, [record(0, headers=headers)]))
    await bus.send(Outgoing(topics.requests, b"k", b"after"))
    reader = bus.reader(TopicPartition(topics.replies, 0), start=0)
    await reader.start()
    expected = {"\\xff\\xfe\\x80": b"1", "twice": b"2", "": b""}

    async with looping(bus, topics) as (handler, telemetry):
        await until(lambda: handler.values == [b"v", b"after"])
        await until(lambda: lag(telemetry, topics.requests) == 0)

    assert handler.started[0].headers == expected
    assert (await take(reader, 1))[0].headers == expected
    await reader.stop()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_records_of_every_codec_are_read(
    bus: Bus, topics: Topics, kafka_servers: str, codec: str
):
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_servers, compression_type=codec, linger_ms=50
    )
    await producer.start()
    values = [b"%d" % n * 1000 for n in range(20)]
    await asyncio.gather(*[producer.send_and_wait(topics.requests, value) for value in values])
    await producer.stop()

    async with looping(bus, topics) as (handler, _):
        await until(lambda: len(handler.started) == 20)

    assert handler.values == values


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_topic_may_have_a_compression_of_its_own(
    bus: Bus, topics: Topics, kafka_servers: str, codec: str
):
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
    await admin.start()
    name = topics.prefix + "render"
    await admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name, {"compression.type": codec})]
    )
    await admin.close()

    for n in range(10):
        await bus.send(Outgoing(name, b"k", b"%d" % n * 5000))
    async with looping(bus, topics, name) as (handler, _):
        await until(lambda: len(handler.started) == 10)

    assert handler.given_up == []


async def test_a_batch_that_expands_to_gigabytes_is_set_aside(
    bus: Bus, topics: Topics, kafka_servers: str
):
    bombs = 12
    for _ in range(bombs):
        await put_raw(kafka_servers, topics.requests, bomb(0, 4 * MAX_EXPANDED_BYTES))
    await bus.send(Outgoing(topics.requests, b"k", b"after"))

    late_s = 0.0

    async def watch() -> None:
        nonlocal late_s
        while True:
            asleep_at = time.monotonic()
            await asyncio.sleep(0.01)
            late_s = max(late_s, time.monotonic() - asleep_at)

    watching = asyncio.create_task(watch())
    async with looping(bus, topics) as (handler, telemetry):
        await until(lambda: handler.values == [b"after"])
        await until(lambda: lag(telemetry, topics.requests) == 0)
    watching.cancel()

    assert [offset for offset, *_ in handler.given_up] == list(range(bombs))
    assert late_s < 1.0
    labels = {"role": "workers", "topic": topics.requests, "partition": "0"}
    sample = telemetry.registry.get_sample_value("tokenfleet_records_unreadable_total", labels)
    assert sample == bombs


async def test_a_large_batch_within_the_limit_is_read_whole(
    bus: Bus, topics: Topics, kafka_servers: str
):
    values = [bytes([n]) * (1024 * 1024) for n in range(25)]
    whole = batch(0, [record(n, b"k", v) for n, v in enumerate(values)], codec=CODECS["gzip"])
    for _ in range(5):
        await put_raw(kafka_servers, topics.requests, whole)

    async with looping(bus, topics) as (handler, _):
        await until(lambda: len(handler.started) == 125)

    assert handler.values == values * 5


async def test_an_aborted_transaction_is_never_handled_and_leaves_no_lag(
    bus: Bus, topics: Topics, kafka_servers: str
):
    producer = AIOKafkaProducer(bootstrap_servers=kafka_servers, transactional_id=topics.prefix)
    await producer.start()
    async with looping(bus, topics) as (handler, telemetry):
        async with producer.transaction():
            await producer.send_and_wait(topics.requests, b"kept", b"k")
        await until(lambda: handler.values == [b"kept"])
        await until(lambda: lag(telemetry, topics.requests) == 0)

        await producer.begin_transaction()
        await producer.send_and_wait(topics.requests, b"never", b"k")
        await bus.send(Outgoing(topics.requests, b"k", b"behind"))
        await producer.abort_transaction()
        await until(lambda: handler.values == [b"kept", b"behind"])

        await producer.begin_transaction()
        await producer.send_and_wait(topics.requests, b"never", b"k")
        await producer.abort_transaction()
        await until(lambda: lag(telemetry, topics.requests) == 0)
    await producer.stop()

    assert handler.values == [b"kept", b"behind"]
    async with looping(bus, topics) as (again, telemetry):
        await until(lambda: lag(telemetry, topics.requests) == 0)
    assert again.started == []


async def test_nothing_of_an_open_transaction_is_handled(
    bus: Bus, topics: Topics, kafka_servers: str
):
    producer = AIOKafkaProducer(bootstrap_servers=kafka_servers, transactional_id=topics.prefix)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topics.requests, b"open", b"k")
    consumer = bus.consumer([topics.requests], group="g")
    await consumer.start()

    assert await consumer.poll(max_records=1, timeout_s=2) == []

    await producer.commit_transaction()
    assert (await take(consumer, 1))[0].value == b"open"
    await consumer.stop()
    await producer.stop()


async def test_a_topic_that_takes_only_small_batches_refuses_one_and_keeps_the_others(
    bus: Bus, topics: Topics, kafka_servers: str
):
    name = topics.prefix + "outside.small"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
    await admin.start()
    new = NewTopic(name, 1, 1, topic_configs={"max.message.bytes": "300"})
    await admin.create_topics([new])
    await admin.close()
    await until_there(bus, name)

    sends = [bus.send(Outgoing(name, b"k", bytes(100))) for _ in range(20)]
    sends += [bus.send(Outgoing(topics.responses, b"k", b"beside")) for _ in range(20)]
    refused = bus.send(Outgoing(name, b"k", bytes(400)))
    *placed, refused = await asyncio.gather(*sends, refused, return_exceptions=True)

    assert sorted(placed[:20]) == [(0, n) for n in range(20)]
    assert sorted(placed[20:]) == [(0, n) for n in range(20)]
    assert isinstance(refused, BusError)
    assert not refused.retriable


async def until_there(bus: Bus, topic: str) -> None:
    async with asyncio.timeout(20):
        while await bus.topic_info(topic) is None:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
async def test_kafkas_own_topics_are_refused(bus: Bus, topics: Topics, topic: str):
    consumer = bus.consumer([topics.requests], group="g")  # makes the broker have the first
    await consumer.start()
    await consumer.stop()

    with pytest.raises(BusError) as caught:
        await bus.send(Outgoing(topic, b"k", b"v"))

    assert not caught.value.retriable
    info = await bus.topic_info(topic)
    assert info is None or info.is_internal


async def test_a_producer_that_is_out_of_step_is_replaced(bus: Bus, topics: Topics, caplog):
    """As after a batch that failed for good: the broker waits for a number that never comes."""
    await bus.send(Outgoing(topics.responses, b"k", b"0"))
    producer = bus._producers._batching
    numbers = producer._producer._txn_manager
    numbers.increment_sequence_number(TopicPartition(topics.responses, 0), 5)

    sends = [bus.send(Outgoing(topics.responses, b"k", b"%d" % n)) for n in range(1, 10)]
    sends += [bus.send(Outgoing(topics.replies, b"k", b"beside")) for _ in range(10)]
    async with asyncio.timeout(20):
        await asyncio.gather(*sends)
        await bus.send(Outgoing(topics.responses, b"k", b"10"))

    reader = bus.reader(TopicPartition(topics.responses, 0), start=0)
    await reader.start()
    values = {r.value for r in await take(reader, 11)}
    await reader.stop()
    assert values == {b"%d" % n for n in range(11)}
    assert bus._producers._batching is not producer
    assert [r.message for r in caplog.records].count("producer_replaced") == 1


async def test_a_topic_that_is_deleted_while_it_is_known_holds_up_nobody(
    bus: Bus, topics: Topics, kafka_servers: str
):
    """The broker may make it again, or not; either way every send ends."""
    name = topics.prefix + "outside.deleted"
    await bus.create_topics([name], num_partitions=1)
    await bus.send(Outgoing(name, b"k", b"v"))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
    await admin.start()
    await admin.delete_topics([name])
    await admin.close()

    late = asyncio.gather(
        *(bus.send(Outgoing(name, b"k", b"v")) for _ in range(5)), return_exceptions=True
    )
    async with asyncio.timeout(2):
        assert await bus.send(Outgoing(topics.responses, b"k", b"v")) == (0, 0)
    async with asyncio.timeout(60):
        assert all(isinstance(end, tuple | BusError) for end in await late)


async def test_what_the_disk_has_damaged_is_set_aside(tmp_path: Path, topics: Topics):
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path / "kafka"
    with LocalKafka(directory=folder) as broker:
        async with opened(broker.servers, topics) as bus:
            for n in range(6):
                await bus.send(Outgoing(topics.requests, b"k", b"value %d" % n))
                await bus.send(Outgoing(topics.replies, b"k", b"value %d" % n))
            for topic in (topics.requests, topics.replies):
                damage(folder, topic, [1, 2, 5])
            reader = bus.reader(TopicPartition(topics.replies, 0), start=0)
            await reader.start()

            async with looping(bus, topics) as (handler, telemetry):
                await until(lambda: lag(telemetry, topics.requests) == 0)
            async with looping(bus, topics) as (again, telemetry):
                await until(lambda: lag(telemetry, topics.requests) == 0)
            read = await take(reader, 6)
            await reader.stop()

    assert handler.values == [b"value 0", b"value 3", b"value 4"]
    assert [offset for offset, *_ in handler.given_up] == [1, 2, 5]
    assert "checksum" in str(handler.given_up[0][1])
    assert (again.started, again.given_up) == ([], [])
    assert [r.offset for r in read if r.unreadable] == [1, 2, 5]


def damage(folder: Path, topic: str, numbers: list[int]) -> None:
    """Flip the last byte of some batches of partition 0, where the broker keeps them."""
    (segment,) = folder.rglob(f"{topic}-0/00000000000000000000.log")
    data, at = bytearray(segment.read_bytes()), 0
    for number in range(max(numbers) + 1):
        (length,) = struct.unpack_from(">i", data, at + 8)
        if number in numbers:
            data[at + 12 + length - 3] ^= 0xFF
        at += 12 + length
    with segment.open("r+b") as file:
        file.write(data)
