"""What the consume loop guarantees, on both buses."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from runtime.bus import Bus, Outgoing, Record
from runtime.flow import Limits
from runtime.loop import ConsumeLoop
from runtime.retry import RetryPolicy
from schemas.errors import Busy, DecodeError, Transient
from schemas.records.control import Abort
from schemas.topics import Topics
from tests.runtime.builders import PATIENCE_S, send_all, take, until

FAST = RetryPolicy(max_attempts=3, first_delay_s=0.01, max_delay_s=0.05)


class Echo:
    """Answers every record on `responses`, after whatever the test wants to happen."""

    def __init__(
        self, topics: Topics, work: Callable[[Record], Awaitable[None]] | None = None
    ) -> None:
        self.topics = topics
        self.work = work
        self.started: list[Record] = []
        self.given_up: list[tuple[int, Exception, int]] = []
        self.gates: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """By value of the record: for `wait`."""

    async def handle(self, record: Record, emit: object) -> Sequence[Outgoing]:
        self.started.append(record)
        if self.work:
            await self.work(record)
        return [Outgoing(self.topics.responses, record.key, record.value)]

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        self.given_up.append((number(record), error, attempts))
        return [Outgoing(self.topics.dead_letter, record.key, record.value)]

    async def wait(self, record: Record) -> None:
        await self.gates[number(record)].wait()

    @property
    def numbers(self) -> list[int]:
        return [number(record) for record in self.started]


def number(record: Record) -> int:
    return int(record.value or b"-1")


@asynccontextmanager
async def running(bus: Bus, topics: Topics, handler: Echo, **options) -> AsyncIterator[ConsumeLoop]:
    loop = ConsumeLoop(
        bus, [topics.requests], group="workers", handler=handler, **({"retry": FAST} | options)
    )
    await loop.start()
    try:
        yield loop
    finally:
        for gate in handler.gates.values():
            gate.set()
        await loop.stop(5)


async def written(bus: Bus, topic: str, count: int) -> list[Record]:
    """Everything on a topic, read by a group of its own."""
    consumer = bus.consumer([topic], group=f"reader-{topic}-{count}")
    await consumer.start()
    records = await take(consumer, count)
    await consumer.stop()
    return records


async def redelivered(bus: Bus, topics: Topics, count: int) -> list[int]:
    """What a successor in the group is given."""
    consumer = bus.consumer([topics.requests], group="workers")
    await consumer.start()
    records = await take(consumer, count)
    assert await consumer.poll(max_records=1, timeout_s=0.2) == []
    await consumer.stop()
    return sorted(number(record) for record in records)


async def test_every_record_is_answered_and_committed(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(200)])
    handler = Echo(topics)
    async with running(bus, topics, handler):
        answers = await written(bus, topics.responses, 200)

    assert sorted(map(number, answers)) == list(range(200))
    assert await redelivered(bus, topics, 0) == []


async def test_only_the_finished_prefix_is_committed(bus: Bus, topics: Topics):
    """One partition, all done but number 3: 3 and everything after it comes again."""
    for n in range(8):
        key = f"k{n}".encode()
        await bus.send(Outgoing(topics.requests, key, str(n).encode(), partition=0))
    handler = Echo(topics)
    handler.work = handler.wait
    loop = ConsumeLoop(bus, [topics.requests], group="workers", handler=handler)
    await loop.start()
    await until(lambda: len(handler.started) == 8)
    for n in (7, 6, 5, 4, 2, 1, 0):
        handler.gates[n].set()
    await written(bus, topics.responses, 7)

    await loop.stop(timeout_s=0.05)  # number 3 is handed back

    assert await redelivered(bus, topics, 5) == [3, 4, 5, 6, 7]


async def test_records_of_one_key_run_one_after_another_and_others_do_not_wait(
    bus: Bus, topics: Topics
):
    active: Counter[bytes | None] = Counter()
    most: Counter[bytes | None] = Counter()

    async def work(record: Record) -> None:
        active[record.key] += 1
        most[record.key] = max(most[record.key], active[record.key])
        most[b"all"] = max(most[b"all"], active.total())
        await asyncio.sleep(0.002)
        active[record.key] -= 1

    await send_all(bus, topics.requests, [f"k{n % 5}".encode() for n in range(50)])
    handler = Echo(topics, work)
    async with running(bus, topics, handler):
        await until(lambda: len(handler.started) == 50)

    by_key = defaultdict(list)
    for record in handler.started:
        by_key[record.key].append(number(record))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert most.pop(b"all") > 1
    assert set(most.values()) == {1}


async def test_a_slow_record_does_not_stop_its_neighbours(bus: Bus, topics: Topics):
    handler = Echo(topics)

    async def work(record: Record) -> None:
        if number(record) == 0:
            await handler.wait(record)

    handler.work = work
    for n in range(101):
        key = f"k{n}".encode()
        await bus.send(Outgoing(topics.requests, key, str(n).encode(), partition=0))
    async with running(bus, topics, handler, limits=Limits(records=2)):
        answers = await written(bus, topics.responses, 100)

    assert sorted(map(number, answers)) == list(range(1, 101))


async def test_a_slow_key_with_many_records_does_not_stop_other_keys(bus: Bus, topics: Topics):
    handler = Echo(topics)

    async def work(record: Record) -> None:
        if record.key == b"slow":
            await handler.wait(record)

    handler.work = work
    keys = [b"slow"] * 50 + [f"k{n}".encode() for n in range(50)]
    for n, key in enumerate(keys):
        await bus.send(Outgoing(topics.requests, key, str(n).encode(), partition=0))
    async with running(bus, topics, handler, limits=Limits(records=4)):
        answers = await written(bus, topics.responses, 50)

        assert sorted(map(number, answers)) == list(range(50, 100))


async def test_poison_is_given_up_and_the_partition_moves_on(bus: Bus, topics: Topics):
    async def work(record: Record) -> None:
        if number(record) == 1:
            raise DecodeError("not an envelope")
        if number(record) == 2:
            raise ZeroDivisionError

    await send_all(bus, topics.requests, [b"same-key"] * 5)
    handler = Echo(topics, work)
    async with running(bus, topics, handler):
        answers = await written(bus, topics.responses, 3)
        letters = await written(bus, topics.dead_letter, 2)

    assert [number(record) for record in answers] == [0, 3, 4]
    assert [number(record) for record in letters] == [1, 2]
    assert [(n, type(e), attempts) for n, e, attempts in handler.given_up] == [
        (1, DecodeError, 1),
        (2, ZeroDivisionError, 1),
    ]
    assert await redelivered(bus, topics, 0) == []


async def test_a_transient_fault_is_tried_again_within_its_attempts(bus: Bus, topics: Topics):
    tries: Counter[int] = Counter()

    async def work(record: Record) -> None:
        tries[number(record)] += 1
        if number(record) == 0 or tries[number(record)] < 2:
            raise Transient("in a moment")

    await send_all(bus, topics.requests, [b"a", b"b"])
    handler = Echo(topics, work)
    async with running(bus, topics, handler):
        await written(bus, topics.dead_letter, 1)
        await written(bus, topics.responses, 1)

    assert tries == {0: 3, 1: 2}
    assert [(n, attempts) for n, _, attempts in handler.given_up] == [(0, 3)]


async def test_a_record_that_waits_for_its_next_try_holds_no_slot(bus: Bus, topics: Topics):
    async def work(record: Record) -> None:
        if number(record) < 3:
            raise Transient("much later", retry_after_s=3600)

    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(20)])
    handler = Echo(topics, work)
    async with running(bus, topics, handler, limits=Limits(records=1)) as loop:
        answers = await written(bus, topics.responses, 17)
        await until(lambda: loop.in_flight == 0)

    assert sorted(map(number, answers)) == list(range(3, 20))


async def test_a_panic_of_a_library_is_given_up_like_other_faults(bus: Bus, topics: Topics):
    class PanicException(BaseException):
        pass

    async def work(record: Record) -> None:
        if number(record) == 0:
            raise PanicException("index out of bounds")

    await send_all(bus, topics.requests, [b"a", b"b"])
    handler = Echo(topics, work)
    async with running(bus, topics, handler):
        await written(bus, topics.dead_letter, 1)
        await written(bus, topics.responses, 1)

    assert [(n, str(e)) for n, e, _ in handler.given_up] == [
        (0, "PanicException: index out of bounds")
    ]


async def test_waiting_for_ones_turn_uses_up_no_attempt(bus: Bus, topics: Topics):
    async def work(record: Record) -> None:
        if len(handler.started) < 5:
            raise Busy("others are first")

    await send_all(bus, topics.requests, [b"a"])
    handler = Echo(topics, work)
    async with running(bus, topics, handler):
        await written(bus, topics.responses, 1)

    assert len(handler.started) == 5
    assert handler.given_up == []


async def test_the_next_try_comes_at_the_deadline_at_the_latest(bus: Bus, topics: Topics):
    async def work(record: Record) -> None:
        if len(handler.started) == 1:
            raise Transient("much later", retry_after_s=3600, deadline_ms=0)

    await send_all(bus, topics.requests, [b"a"])
    handler = Echo(topics, work)
    async with running(bus, topics, handler):
        await written(bus, topics.responses, 1)

    assert len(handler.started) == 2


class Crowd:
    """Work that waits for its gate, and knows how much of it there was at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.now = self.most = 0

    async def work(self, record: Record) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.gate.wait()
        self.now -= 1


async def test_at_the_bound_of_records_no_more_are_started(bus: Bus, topics: Topics):
    handler, crowd = Echo(topics), Crowd()
    handler.work = crowd.work
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(100)])
    async with running(bus, topics, handler, limits=Limits(records=5)):
        await until(lambda: crowd.now == 5)
        crowd.gate.set()
        assert len(await written(bus, topics.responses, 100)) == 100

    assert crowd.most == 5


async def test_at_the_bound_of_bytes_no_more_are_taken(bus: Bus, topics: Topics):
    handler, crowd = Echo(topics), Crowd()

    async def handle(record: Record, emit: object) -> Sequence[Outgoing]:
        handler.started.append(record)
        await crowd.work(record)
        return []

    handler.handle = handle
    megabyte = bytes(1024 * 1024)
    for n in range(40):
        await bus.send(Outgoing(topics.requests, f"k{n}".encode(), megabyte))
    limits = Limits(records=100, bytes=4 * len(megabyte))
    async with running(bus, topics, handler, limits=limits):
        await until(lambda: crowd.now >= 4)
        crowd.gate.set()
        await until(lambda: len(handler.started) == 40)

    assert crowd.most <= 5


async def test_beyond_the_distance_a_partition_waits_for_its_oldest_record(
    bus: Bus, topics: Topics
):
    handler = Echo(topics)

    async def work(record: Record) -> None:
        if number(record) == 0:
            await handler.wait(record)

    handler.work = work
    for n in range(100):
        key = f"k{n}".encode()
        await bus.send(Outgoing(topics.requests, key, str(n).encode(), partition=0))
    async with running(bus, topics, handler, limits=Limits(records=4, distance=20)):
        await until(lambda: len(handler.started) >= 20)
        # The loop goes round for another partition meanwhile.
        for n in range(1000, 1010):
            await bus.send(Outgoing(topics.requests, b"other", str(n).encode(), partition=1))
            await until(lambda n=n: n in handler.numbers)
        assert sum(n < 1000 for n in handler.numbers) <= 26
        handler.gates[0].set()
        await written(bus, topics.responses, 110)


async def test_what_a_stopped_member_did_not_finish_another_does(bus: Bus, topics: Topics):
    stuck, other = Echo(topics), Echo(topics)
    stuck.work = stuck.wait
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(20)])
    loop = ConsumeLoop(bus, [topics.requests], group="workers", handler=stuck)
    await loop.start()
    await until(lambda: len(stuck.started) == 16)
    stuck.gates[stuck.numbers[0]].set()

    await loop.stop(timeout_s=0.2)
    async with running(bus, topics, other):
        answers = await written(bus, topics.responses, 20)

    assert {number(record) for record in answers} == set(range(20))


async def test_stop_lets_running_work_finish_and_commits_it(bus: Bus, topics: Topics):
    handler = Echo(topics)
    handler.work = handler.wait
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(8)])
    loop = ConsumeLoop(bus, [topics.requests], group="workers", handler=handler)
    await loop.start()
    run = asyncio.create_task(loop.run())
    await until(lambda: len(handler.started) == 8)

    stop = asyncio.create_task(loop.stop(timeout_s=PATIENCE_S))
    await asyncio.sleep(0.05)
    assert not stop.done()
    for n in range(8):
        handler.gates[n].set()
    await stop
    await run
    await loop.stop()

    assert await redelivered(bus, topics, 0) == []


async def test_a_rebalance_cancels_nothing_that_stays(bus: Bus, topics: Topics):
    """Every record is in flight when a second member comes; each is answered at least once."""
    one, two = Echo(topics), Echo(topics)
    one.work = one.wait
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(40)])
    limits = Limits(records=40)
    async with running(bus, topics, one, limits=limits) as first:
        await until(lambda: len(one.started) == 40)
        async with running(bus, topics, two, limits=limits) as second:
            await until(lambda: first.is_assigned() and second.is_assigned())
            await until(lambda: 0 < first.in_flight == 40 - len(two.started) < 40)
            for n in range(40):
                one.gates[n].set()
            answers = await written(bus, topics.responses, 40)

    assert sorted(map(number, answers)) == list(range(40))
    assert len(one.started) == 40
    assert await redelivered(bus, topics, 0) == []


async def test_nothing_is_committed_early_by_a_rebalance(bus: Bus, topics: Topics):
    handler = Echo(topics)
    handler.work = handler.wait
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(10)])
    loop = ConsumeLoop(bus, [topics.requests], group="workers", handler=handler)
    await loop.start()
    await until(lambda: len(handler.started) == 10)
    visitor = bus.consumer([topics.requests], group="workers")
    await visitor.start()
    await visitor.stop()
    await until(loop.is_assigned)

    await loop.stop(timeout_s=0.0)

    assert await redelivered(bus, topics, 10) == list(range(10))


async def test_members_that_come_and_go_lose_nothing(bus: Bus, topics: Topics):
    async def work(record: Record) -> None:
        await asyncio.sleep(0.005)

    total = 400
    steady = Echo(topics, work)
    async with running(bus, topics, steady):
        sending = asyncio.create_task(
            send_all(bus, topics.requests, [f"k{n}".encode() for n in range(total)])
        )
        for _ in range(3):
            async with running(bus, topics, Echo(topics, work)):
                await asyncio.sleep(0.05)
        await sending
        await until_answered(bus, topics, total)

    assert await redelivered(bus, topics, 0) == []


async def until_answered(bus: Bus, topics: Topics, total: int) -> None:
    consumer = bus.consumer([topics.responses], group="answers")
    await consumer.start()
    seen: set[int] = set()
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < total:
            seen |= {number(r) for r in await consumer.poll(max_records=500, timeout_s=0.5)}
    await consumer.stop()


LEFT = Abort(id="left", deadline_ms=2**53)


async def test_an_aborted_record_ends_at_once_and_counts_as_done(bus: Bus, topics: Topics):
    await send_all(bus, topics.requests, [b"left", b"kept"])
    handler = Echo(topics)
    handler.work = handler.wait
    async with running(bus, topics, handler) as loop:
        await until(lambda: len(handler.started) == 2)
        loop.aborts.add(LEFT)
        await until(lambda: loop.in_flight == 1)
        handler.gates[1].set()
        answers = await written(bus, topics.responses, 1)

    assert [answer.key for answer in answers] == [b"kept"]
    assert handler.given_up == []
    assert await redelivered(bus, topics, 0) == []


async def test_an_aborted_record_that_waits_for_its_next_try_is_not_begun_again(
    bus: Bus, topics: Topics
):
    async def away(record: Record) -> None:
        raise Transient("away")

    await send_all(bus, topics.requests, [b"left"])
    handler = Echo(topics, away)
    patient = RetryPolicy(max_attempts=3, first_delay_s=60, max_delay_s=60)
    async with running(bus, topics, handler, retry=patient) as loop:
        await until(lambda: len(handler.started) == 1 and loop.in_flight == 0)
        loop.aborts.add(LEFT)
        await until(lambda: loop.in_flight == 0)

    assert len(handler.started) == 1
    assert await redelivered(bus, topics, 0) == []


async def test_records_that_come_after_their_abort_are_not_begun(bus: Bus, topics: Topics):
    handler = Echo(topics)
    async with running(bus, topics, handler) as loop:
        loop.aborts.add(LEFT)
        await send_all(bus, topics.requests, [b"left", b"kept"])
        await written(bus, topics.responses, 1)
        await until(lambda: loop.in_flight == 0)

    assert [record.key for record in handler.started] == [b"kept"]
    assert await redelivered(bus, topics, 0) == []
