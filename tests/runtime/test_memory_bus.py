"""What only the memory bus has: forgetting, and dealing partitions itself."""

from aiokafka.partitioner import murmur2 as kafkas_murmur2
from hypothesis import given
from hypothesis import strategies as st

from runtime.bus import Outgoing, TopicPartition
from runtime.bus.assignment import deal
from runtime.bus.memory import READ, UNREAD, MemoryBus
from runtime.bus.partitioning import murmur2
from schemas.topics import Topics

TOPICS = Topics()


@given(st.binary(max_size=64))
def test_hash_is_kafkas(key: bytes):
    assert murmur2(key) == kafkas_murmur2(key) & 0xFFFFFFFF


async def test_what_every_group_committed_is_forgotten_beyond_a_tail():
    bus = MemoryBus(num_partitions=1)
    source = TopicPartition(TOPICS.replies, 0)
    consumers = [bus.consumer([source.topic], group=name) for name in ("one", "two")]
    for consumer in consumers:
        await consumer.start()
    for _ in range(2000):
        await bus.send(Outgoing(source.topic, b"k", bytes(100)))

    await consumers[0].commit({source: 2000})
    assert bus.log(source).start == 0
    await consumers[1].commit({source: 1990})

    assert bus.log(source).start == 2000 - READ.records
    assert bus.log(source).size == READ.records * 101


async def test_large_committed_records_are_forgotten_by_bytes():
    bus = MemoryBus(num_partitions=1)
    source = TopicPartition(TOPICS.requests, 0)
    consumer = bus.consumer([source.topic], group="g")
    await consumer.start()
    for _ in range(20):
        await bus.send(Outgoing(source.topic, b"k", bytes(1024 * 1024)))

    await consumer.commit({source: 20})

    assert bus.log(source).size <= READ.bytes


async def test_a_topic_that_nobody_reads_stays_bounded():
    bus = MemoryBus(num_partitions=1)
    for _ in range(UNREAD.records + 500):
        await bus.send(Outgoing(TOPICS.dead_letter, b"k", b"v"))

    log = bus.log(TopicPartition(TOPICS.dead_letter, 0))
    assert (log.end - log.start, log.end) == (UNREAD.records, UNREAD.records + 500)


async def test_uncommitted_records_are_never_forgotten():
    bus = MemoryBus(num_partitions=1)
    source = TopicPartition(TOPICS.requests, 0)
    consumer = bus.consumer([source.topic], group="g")
    await consumer.start()
    for _ in range(UNREAD.records * 2):
        await bus.send(Outgoing(source.topic, b"k", b"v"))

    assert bus.log(source).start == 0


members = st.sets(st.sampled_from("abcdef"), max_size=6)


@given(
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(1, 12), min_size=1),
    st.lists(members, min_size=1, max_size=6),
)
def test_dealing_gives_every_partition_to_one_member_evenly(counts, generations):
    owned: dict[str, set[TopicPartition]] = {}
    for generation in generations:
        owned = deal(counts, {m: frozenset(counts) for m in generation}, owned)

        dealt = [partition for partitions in owned.values() for partition in partitions]
        assert len(dealt) == len(set(dealt)) == (sum(counts.values()) if generation else 0)
        for topic in counts:
            shares = [sum(p.topic == topic for p in owned[m]) for m in generation]
            assert not shares or max(shares) - min(shares) <= 1


@given(st.integers(1, 16), st.integers(2, 5))
def test_dealing_again_to_the_same_members_moves_nothing(count, num_members):
    subscriptions = {str(n): frozenset({"t"}) for n in range(num_members)}
    first = deal({"t": count}, subscriptions, {})

    assert deal({"t": count}, subscriptions, first) == first
