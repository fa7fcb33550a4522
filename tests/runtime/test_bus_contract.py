"""What every bus promises. The same bodies run on the memory bus and on a real broker."""

import asyncio
from collections import defaultdict

import pytest

from runtime.bus import Bus, Outgoing, Record, TopicInfo, TopicPartition
from runtime.bus.limits import OVERHEAD_BYTES
from runtime.bus.partitioning import partition_for
from runtime.errors import BusError, OwnershipLost
from schemas.topics import MAX_RECORD_BYTES, MAX_REQUEST_RECORD_BYTES, Topics
from tests.runtime.builders import Listener, send_all, take, until

KEYS = [f"key-{n}".encode() for n in range(20)]


async def test_records_with_one_key_arrive_in_the_order_they_were_sent(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, [KEYS[n % 5] for n in range(50)])
    consumer = bus.consumer([topics.requests], group="g")
    await consumer.start()

    records = await take(consumer, 50)

    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(int(record.value or b"-1"))
    assert len(by_key) == 5
    assert all(values == sorted(values) for values in by_key.values())
    await consumer.stop()


async def test_a_key_always_goes_to_kafkas_partition_for_it(bus: Bus, topics: Topics):
    expected = {b"key-0": 1, b"key-1": 0, b"a": 0, b"": 1, "Zürich".encode(): 1}

    placed = {k: (await bus.send(Outgoing(topics.requests, k, b""))) for k in expected}

    assert {k: partition for k, (partition, _) in placed.items()} == expected


async def test_a_named_partition_wins_over_the_key(bus: Bus, topics: Topics):
    placed = [await bus.send(Outgoing(topics.replies, b"k", b"", partition=n)) for n in range(4)]

    assert placed == [(0, 0), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize(("key", "value"), [(b"k", None), (None, b"v"), (b"", b"")])
async def test_headers_missing_keys_and_tombstones_are_kept(bus: Bus, topics: Topics, key, value):
    sent = Outgoing(topics.requests, key, value, {"a": b"\x00\xff", "b": b""})
    partition, offset = await bus.send(sent)
    consumer = bus.consumer([topics.requests], group="g")
    await consumer.start()

    (record,) = await take(consumer, 1)

    assert (record.key, record.value, dict(record.headers)) == (key, value, sent.headers)
    assert (record.topic, record.partition, record.offset) == (topics.requests, partition, offset)
    assert record.timestamp_ms > 1_600_000_000_000
    await consumer.stop()


async def test_a_record_of_nothing_is_refused(bus: Bus, topics: Topics):
    with pytest.raises(BusError):
        await bus.send(Outgoing(topics.requests, None, None))


async def test_a_new_group_starts_at_the_earliest_record(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, KEYS)
    consumer = bus.consumer([topics.requests], group="late")
    await consumer.start()

    assert len(await take(consumer, len(KEYS))) == len(KEYS)
    await consumer.stop()


async def test_two_groups_each_get_everything(bus: Bus, topics: Topics):
    consumers = [bus.consumer([topics.requests], group=name) for name in ("one", "two")]
    await asyncio.gather(*(c.start() for c in consumers))
    await send_all(bus, topics.requests, KEYS)

    counts = [len(await take(consumer, len(KEYS))) for consumer in consumers]

    assert counts == [len(KEYS), len(KEYS)]
    await asyncio.gather(*(c.stop() for c in consumers))


async def test_members_of_a_group_share_the_partitions(bus: Bus, topics: Topics):
    one, two = (bus.consumer([topics.requests], group="g") for _ in range(2))
    await asyncio.gather(one.start(), two.start())
    await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)
    await send_all(bus, topics.requests, KEYS)

    halves = [await drain(one), await drain(two)]

    assert sorted(int(r.value or b"") for half in halves for r in half) == list(range(len(KEYS)))
    assert not {r.source for r in halves[0]} & {r.source for r in halves[1]}
    await asyncio.gather(one.stop(), two.stop())


async def drain(consumer) -> list[Record]:
    records: list[Record] = []
    while more := await consumer.poll(max_records=100, timeout_s=0.5):
        records += more
    return records


async def test_only_what_was_committed_is_not_delivered_again(bus: Bus, topics: Topics):
    placed = await send_all(bus, topics.requests, [b"one-key"] * 10)
    source = TopicPartition(topics.requests, placed[0][0])
    dying = bus.consumer([topics.requests], group="g")
    await dying.start()
    await take(dying, 10)
    await dying.commit({source: 4})
    await dying.stop()

    successor = bus.consumer([topics.requests], group="g")
    await successor.start()

    assert [record.offset for record in await take(successor, 6)] == [4, 5, 6, 7, 8, 9]
    await successor.stop()


async def test_nothing_is_committed_by_stopping(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, KEYS)
    for _ in range(2):
        consumer = bus.consumer([topics.requests], group="g")
        await consumer.start()
        assert len(await take(consumer, len(KEYS))) == len(KEYS)
        await consumer.stop()
        await consumer.stop()


async def test_a_leaving_members_partitions_reach_the_other_within_seconds(
    bus: Bus, topics: Topics
):
    one, two = (bus.consumer([topics.requests], group="g") for _ in range(2))
    await asyncio.gather(one.start(), two.start())
    await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)

    async with asyncio.timeout(10):
        await one.stop()
        await send_all(bus, topics.requests, KEYS)
        assert len(await take(two, len(KEYS))) == len(KEYS)
    await two.stop()


async def test_listeners_are_told_what_is_revoked_and_assigned(bus: Bus, topics: Topics):
    everything = frozenset(TopicPartition(topics.requests, n) for n in range(4))
    first, second = Listener(), Listener()
    one = bus.consumer([topics.requests], group="g", listener=first)
    await one.start()
    await until(lambda: first.calls == [("assigned", everything)])

    two = bus.consumer([topics.requests], group="g", listener=second)
    await two.start()
    await until(lambda: len(first.calls) == 3 and len(second.calls) > 0)

    assert first.calls[1] == ("revoked", everything)
    assert first.calls[2] == ("assigned", one.assignment())
    assert second.calls[-1] == ("assigned", two.assignment())
    assert one.assignment() | two.assignment() == everything
    await asyncio.gather(one.stop(), two.stop())


async def test_what_is_committed_while_revoking_is_not_delivered_again(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, KEYS)
    next_offsets: dict[TopicPartition, int] = {}

    async def commit() -> None:
        await one.commit(next_offsets)

    one = bus.consumer([topics.requests], group="g", listener=Listener(commit))
    await one.start()
    for record in await take(one, len(KEYS)):
        next_offsets[record.source] = record.offset + 1
    two = bus.consumer([topics.requests], group="g")
    await two.start()
    await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)

    assert await drain(one) == []
    assert await drain(two) == []
    await asyncio.gather(one.stop(), two.stop())


async def test_a_commit_for_a_partition_that_moved_is_ownership_lost(bus: Bus, topics: Topics):
    one, two = (bus.consumer([topics.requests], group="g") for _ in range(2))
    await asyncio.gather(one.start(), two.start())
    await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)

    with pytest.raises(OwnershipLost):
        await one.commit(dict.fromkeys(two.assignment(), 0))
    await asyncio.gather(one.stop(), two.stop())


async def test_a_paused_partition_waits_and_the_others_flow(bus: Bus, topics: Topics):
    consumer = bus.consumer([topics.replies], group="g")
    await consumer.start()
    await until(lambda: len(consumer.assignment()) == 4)
    paused = TopicPartition(topics.replies, 0)
    consumer.pause([paused])
    for n in range(4):
        await bus.send(Outgoing(topics.replies, b"k", b"", partition=n))

    flowed = {record.partition for record in await take(consumer, 3)}
    kept_back = await consumer.poll(max_records=10, timeout_s=0.3)
    consumer.resume([paused])
    (resumed,) = await take(consumer, 1)

    assert (flowed, kept_back, resumed.partition) == ({1, 2, 3}, [], 0)
    await consumer.stop()


async def test_a_reader_starts_at_the_end(bus: Bus, topics: Topics):
    await bus.send(Outgoing(topics.replies, b"k", b"before", partition=2))
    reader = bus.reader(TopicPartition(topics.replies, 2))
    await reader.start()
    await bus.send(Outgoing(topics.replies, b"k", b"elsewhere", partition=1))
    await bus.send(Outgoing(topics.replies, b"k", b"after", partition=2))

    (record,) = await take(reader, 1)

    assert record.value == b"after"
    await reader.stop()


async def test_a_reader_starts_where_it_is_told(bus: Bus, topics: Topics):
    for n in range(5):
        await bus.send(Outgoing(topics.replies, b"k", str(n).encode(), partition=2))
    reader = bus.reader(TopicPartition(topics.replies, 2), start=3)
    await reader.start()

    assert [record.value for record in await take(reader, 2)] == [b"3", b"4"]
    assert reader.end_offset(TopicPartition(topics.replies, 2)) == 5
    await reader.stop()


async def test_readers_do_not_share(bus: Bus, topics: Topics):
    partition = TopicPartition(topics.control, 0)
    readers = [bus.reader(partition) for _ in range(2)]
    for reader in readers:
        await reader.start()

    await bus.send(Outgoing(topics.control, b"k", b"abort", partition=0))

    assert [(await take(r, 1))[0].value for r in readers] == [b"abort", b"abort"]
    for reader in readers:
        await reader.stop()


async def test_a_request_of_the_largest_size_arrives_whole(bus: Bus, topics: Topics):
    value = bytes(range(256)) * (MAX_REQUEST_RECORD_BYTES // 256)
    await bus.send(Outgoing(topics.requests, b"k", value, {"content-type": b"application/json"}))
    await bus.send(Outgoing(topics.requests, b"k", b"next"))
    consumer = bus.consumer([topics.requests], group="g")
    await consumer.start()

    large, small = await take(consumer, 2)

    assert large.value == value
    assert small.value == b"next"
    await consumer.stop()


async def test_a_record_too_large_for_its_topic_is_refused_for_good(bus: Bus, topics: Topics):
    with pytest.raises(BusError) as caught:
        await bus.send(Outgoing(topics.replies, b"k", bytes(MAX_REQUEST_RECORD_BYTES)))

    assert not caught.value.retriable


async def test_poll_returns_no_more_than_asked_for(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, KEYS)
    consumer = bus.consumer([topics.requests], group="g")
    await consumer.start()

    assert len(await take(consumer, 1)) == 1
    assert len(await consumer.poll(max_records=3, timeout_s=5)) <= 3
    await consumer.stop()


async def test_poll_returns_empty_handed_after_its_time_out(bus: Bus, topics: Topics):
    consumer = bus.consumer([topics.requests], group="g")
    await consumer.start()

    async with asyncio.timeout(5):
        assert await consumer.poll(max_records=1, timeout_s=0.05) == []
    await consumer.stop()


async def test_creating_topics_twice_creates_the_missing_ones(bus: Bus, topic_prefix: str):
    old, new = topic_prefix + "x.old", topic_prefix + "x.new"

    assert await bus.create_topics([old], num_partitions=3) == [old]
    assert await bus.create_topics([old, new], num_partitions=5) == [new]

    assert [await bus.num_partitions(topic) for topic in (old, new)] == [3, 5]


async def test_a_topic_is_described_and_never_created_by_asking(bus: Bus, topics: Topics):
    asked = [topics.requests, topics.replies, topics.prefix + "nobody's", topics.prefix + "missing"]
    asked += [".", "..", "", "a/b", "ü", "\ud800", "x" * 250]

    for _ in range(2):
        infos = [await bus.topic_info(topic) for topic in asked]
        assert infos[0] == TopicInfo(4, MAX_REQUEST_RECORD_BYTES + OVERHEAD_BYTES, False)
        assert infos[1] == TopicInfo(4, MAX_RECORD_BYTES + OVERHEAD_BYTES, False)
        assert infos[2:] == [None] * (len(asked) - 2)


async def test_a_created_topic_is_known_at_once(bus: Bus, topics: Topics):
    name = topics.prefix + "x.later"
    assert await bus.topic_info(name) is None

    await bus.create_topics([name], num_partitions=3)

    info = await bus.topic_info(name)
    assert info is not None
    assert (info.num_partitions, info.is_internal) == (3, False)


@pytest.mark.parametrize("partition", [-7, -1, 4, 1_000_000])
async def test_a_partition_that_is_not_there_is_refused_and_harms_nobody(
    bus: Bus, topics: Topics, partition: int
):
    async def misplaced() -> None:
        with pytest.raises(BusError) as caught:
            await bus.send(Outgoing(topics.replies, b"k", b"v", partition=partition))
        assert not caught.value.retriable

    fine = [bus.send(Outgoing(topics.replies, KEYS[n], b"v", partition=n % 4)) for n in range(8)]
    *placed, _ = await asyncio.gather(*fine, misplaced())

    assert sorted(placed) == sorted((n % 4, n // 4) for n in range(8))


@pytest.mark.parametrize("topic", ["missing", ".", "..", "x" * 249, "x" * 250, "a b", "\ud800"])
async def test_a_topic_that_is_not_there_is_refused_at_once(bus: Bus, topics: Topics, topic: str):
    async with asyncio.timeout(5):
        with pytest.raises(BusError) as caught:
            await bus.send(Outgoing(topic, b"k", b"v"))

    assert not caught.value.retriable
    assert await bus.topic_info(topic) is None


async def test_a_position_is_beyond_what_poll_has_given_out(bus: Bus, topics: Topics):
    source = TopicPartition(topics.replies, 2)
    for _ in range(3):
        await bus.send(Outgoing(topics.replies, b"k", b"v", partition=2))
    reader = bus.reader(source, start=1)
    await reader.start()
    assert reader.position(source) == 1

    await take(reader, 1)
    assert reader.position(source) == 2
    await take(reader, 1)
    assert reader.position(source) == 3

    assert reader.position(TopicPartition(topics.replies, 3)) is None
    await reader.stop()
    assert reader.position(source) is None


async def test_a_key_may_be_as_large_as_a_record(bus: Bus, topics: Topics):
    key = b"k" * MAX_RECORD_BYTES
    placed = [await bus.send(Outgoing(topics.replies, key, b"")) for _ in range(2)]

    assert [offset for _, offset in placed] == [0, 1]
    assert placed[0][0] == placed[1][0] == partition_for(key, 4)
