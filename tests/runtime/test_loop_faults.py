"""The loop when the bus fails, refuses or takes partitions away; and what it leaves behind."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from runtime.backlog import Work
from runtime.bus import Bus, Outgoing, Record, TopicPartition
from runtime.bus.memory import READ, MemoryBus
from runtime.errors import BusError, OwnershipLost, StoreError, Undeliverable
from runtime.execution import Done
from runtime.flow import Limits
from runtime.logs import JsonFormatter
from runtime.loop import ConsumeLoop
from runtime.offsets import OffsetTracker
from runtime.reporting import report
from runtime.telemetry import Telemetry
from schemas.errors import DecodeError, Transient
from schemas.topics import MAX_REQUEST_RECORD_BYTES, Topics
from tests.runtime.builders import send_all, until
from tests.runtime.test_loop import Echo, redelivered, running, written


class Faulty:
    """A real bus whose calls fail as a test tells them to."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.faults: dict[str, list[Exception]] = {"send": [], "poll": [], "commit": []}
        self.calls: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self._bus, name)

    def consumer(self, topics: Sequence[str], **options):
        return FaultyConsumer(self, self._bus.consumer(topics, **options))

    async def send(self, record: Outgoing) -> tuple[int, int]:
        self.fail("send")
        return await self._bus.send(record)

    def fail(self, call: str) -> None:
        self.calls.append(call)
        if self.faults[call]:
            raise self.faults[call].pop(0)


class FaultyConsumer:
    def __init__(self, bus: Faulty, consumer) -> None:
        self._bus = bus
        self._consumer = consumer

    def __getattr__(self, name: str):
        return getattr(self._consumer, name)

    async def poll(self, **options) -> list[Record]:
        self._bus.fail("poll")
        return await self._consumer.poll(**options)

    async def commit(self, offsets) -> None:
        self._bus.fail("commit")
        await self._consumer.commit(offsets)


@pytest.fixture
async def bus(topics: Topics) -> AsyncIterator[Faulty]:
    real = MemoryBus(num_partitions=4, topics=topics)
    yield Faulty(real)
    await real.stop()


async def test_a_send_that_fails_is_repeated_without_doing_the_work_again(bus, topics):
    await send_all(bus, topics.requests, [b"a"])
    bus.faults["send"] = [BusError("away"), BusError("still away")]
    handler = Echo(topics)
    async with running(bus, topics, handler):
        await written(bus, topics.responses, 1)

    assert len(handler.started) == 1
    assert bus.calls.count("send") == 4


async def test_an_output_that_the_bus_refuses_is_given_up(bus, topics):
    handler = Echo(topics)

    async def handle(record: Record, emit: object) -> Sequence[Outgoing]:
        return [Outgoing(topics.responses, b"k", bytes(MAX_REQUEST_RECORD_BYTES))]

    handler.handle = handle
    await send_all(bus, topics.requests, [b"a"])
    async with running(bus, topics, handler):
        await written(bus, topics.dead_letter, 1)

    assert [type(error) for _, error, _ in handler.given_up] == [Undeliverable]


async def test_a_store_that_is_away_is_a_reason_to_try_again(bus, topics):
    async def work(record: Record) -> None:
        if len(handler.started) == 1:
            raise StoreError("away")

    handler = Echo(topics, work)
    await send_all(bus, topics.requests, [b"a"])
    async with running(bus, topics, handler):
        await written(bus, topics.responses, 1)

    assert handler.given_up == []


async def test_giving_up_is_tried_until_it_works(bus, topics):
    failures = [StoreError("away"), ZeroDivisionError(), StoreError("away")]

    async def work(record: Record) -> None:
        raise ValueError("poison")

    class Stubborn(Echo):
        async def give_up(self, record, error, attempts):
            if failures:
                raise failures.pop()
            return await super().give_up(record, error, attempts)

    await send_all(bus, topics.requests, [b"a"])
    async with running(bus, topics, Stubborn(topics, work)):
        await written(bus, topics.dead_letter, 1)

    assert failures == []


async def test_a_producer_that_refuses_everything_ends_the_process(bus, topics):
    await send_all(bus, topics.requests, [b"a"])
    bus.faults["send"] = [BusError("fenced", retriable=False)] * 11
    async with running(bus, topics, Echo(topics)) as loop:
        with pytest.raises(BusError, match="fenced"):
            await asyncio.wait_for(loop.run(), 10)

    assert await redelivered(bus, topics, 1) == [0]


@pytest.mark.parametrize("call", ["poll", "commit"])
async def test_run_raises_what_a_routine_died_of(bus, topics, call: str):
    await send_all(bus, topics.requests, [b"a"])
    bus.faults[call] = [BusError("not allowed", retriable=False)]
    async with running(bus, topics, Echo(topics)) as loop:
        with pytest.raises(BusError, match="not allowed"):
            await asyncio.wait_for(loop.run(), 5)


@pytest.mark.parametrize("call", ["poll", "commit"])
async def test_a_bus_that_is_away_for_a_moment_stops_nothing(bus, topics, call: str):
    bus.faults[call] = [BusError("away")]
    await send_all(bus, topics.requests, [b"a"])
    async with running(bus, topics, Echo(topics)):
        await written(bus, topics.responses, 1)
        await until(lambda: bus.faults[call] == [])
        await until(lambda: bus.calls.count("commit") >= 1 + (call == "commit"))

    assert await redelivered(bus, topics, 0) == []


async def test_a_refused_commit_is_normal(bus, topics, caplog):
    caplog.set_level(logging.INFO)
    bus.faults["commit"] = [OwnershipLost("moved")]
    await send_all(bus, topics.requests, [b"a", b"b"])
    async with running(bus, topics, Echo(topics)):
        await written(bus, topics.responses, 2)
        await until(lambda: "commit" in bus.calls)

    refused = [r for r in caplog.records if r.getMessage() == "commit_refused"]
    assert [r.levelname for r in refused] == ["INFO"]
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_polling_goes_on_while_there_is_no_room(bus, topics):
    """Or the group would take a slow worker for a dead one."""
    handler = Echo(topics)
    handler.work = handler.wait
    await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(20)])
    async with running(bus, topics, handler, limits=Limits(records=2)) as loop:
        await until(lambda: loop.in_flight == 2)
        before = bus.calls.count("poll")
        await until(lambda: bus.calls.count("poll") >= before + 2)

        assert len(handler.started) == 2
        assert loop.idle_s() < 2


async def test_work_of_a_lost_partition_is_cancelled_and_not_committed(bus, topics):
    cancelled: list[int] = []

    async def work(record: Record) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(record.partition)
            raise

    for n in range(4):
        await bus.send(Outgoing(topics.requests, b"k", str(n).encode(), partition=n))
    handler = Echo(topics, work)
    async with running(bus, topics, handler) as loop:
        await until(lambda: loop.in_flight == 4)
        visitor = bus.consumer([topics.requests], group="workers")
        await visitor.start()
        await until(lambda: loop.in_flight == 2)

        assert sorted(cancelled) == sorted(p.partition for p in visitor.assignment())
        await visitor.stop()
        await until(lambda: loop.in_flight == 4)
        await loop.stop(timeout_s=0)

    assert await redelivered(bus, topics, 4) == [0, 1, 2, 3]


async def test_a_record_postponed_on_a_lost_partition_is_not_tried_here_again(bus, topics):
    async def work(record: Record) -> None:
        raise Transient("soon", retry_after_s=0.3)

    for n in range(4):
        await bus.send(Outgoing(topics.requests, b"k", str(n).encode(), partition=n))
    handler = Echo(topics, work)
    async with running(bus, topics, handler) as loop:
        await until(lambda: len(handler.started) == 4 and loop.in_flight == 0)
        visitor = bus.consumer([topics.requests], group="workers")
        await visitor.start()
        await until(lambda: len(handler.given_up) == 2)

        lost = {p.partition for p in visitor.assignment()}
        assert {n for n, _, _ in handler.given_up} == {0, 1, 2, 3} - lost
        await visitor.stop()


async def test_thousands_of_records_leave_nothing_behind(bus, topics):
    telemetry = Telemetry()
    handler = Echo(topics)
    handler.started = NothingKept()
    async with running(bus, topics, handler, telemetry=telemetry.role("echo")) as loop:
        for _ in range(20):
            await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(250)])
        handled = telemetry.handled.labels("echo", "done")._value
        await until(lambda: handled.get() == 5000)
        await until(lambda: lag(telemetry, topics) == {0.0})

        assert (loop.in_flight, loop._backlog.bytes, loop._backlog._lanes) == (0, 0, {})
        for n in range(4):
            log = bus.log(TopicPartition(topics.requests, n))
            assert log.end - log.start <= READ.records
    text = telemetry.render().decode()
    assert 'tokenfleet_records_handled_total{outcome="done",role="echo"} 5000.0' in text


def lag(telemetry: Telemetry, topics: Topics) -> set[float]:
    return {sample.value for metric in telemetry.lag.collect() for sample in metric.samples}


class NothingKept(list):
    def append(self, item) -> None:
        pass


async def test_one_line_per_record_says_which_and_how_it_went(bus, topics, caplog):
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter().format(record))

    logger = logging.getLogger("runtime.reporting")
    logger.setLevel(logging.INFO)
    logger.addHandler(keep := Keep())
    try:
        await send_all(bus, topics.requests, [b"request-1"])
        async with running(bus, topics, Echo(topics)):
            await written(bus, topics.responses, 1)
    finally:
        logger.removeHandler(keep)

    (line,) = [line for line in lines if '"event":"record_handled"' in line]
    for part in ('"request_id":"request-1"', '"outcome":"done"', '"attempt":1', '"offset":0'):
        assert part in line


def test_a_loop_that_never_started_can_be_stopped(topics):
    async def stop() -> None:
        loop = ConsumeLoop(MemoryBus(), [topics.requests], group="g", handler=Echo(topics))
        await loop.stop()
        await loop.stop()

    asyncio.run(stop())


class Unreadable(FaultyConsumer):
    """Every record of it turns out to be broken, as on a damaged disk."""

    async def poll(self, **options) -> list[Record]:
        return [
            Record(r.topic, r.partition, r.offset, None, None, unreadable=f"offset {r.offset}: why")
            for r in await self._consumer.poll(**options)
        ]


async def test_what_cannot_be_read_is_set_aside_and_counted(bus, topics):
    class Strict(Echo):
        async def give_up(self, record, error, attempts):
            self.given_up.append((record.offset, error, attempts))
            return [Outgoing(topics.dead_letter, None, str(error).encode())]

    real = bus._bus
    bus.consumer = lambda names, **options: Unreadable(bus, real.consumer(names, **options))
    handler, telemetry = Strict(topics), Telemetry()
    await send_all(bus, topics.requests, [b"a", b"a"])
    async with running(bus, topics, handler, telemetry=telemetry.role("echo")):
        letters = await written(real, topics.dead_letter, 2)

    assert handler.started == []
    assert sorted(letter.value for letter in letters) == [b"offset 0: why", b"offset 1: why"]
    assert {type(error) for _, error, _ in handler.given_up} == {DecodeError}
    assert "tokenfleet_records_unreadable_total{" in telemetry.render().decode()
    assert await redelivered(real, topics, 0) == []


async def test_a_key_of_any_length_and_a_time_of_any_size_are_reported_short(bus, topics):
    lines: list[logging.LogRecord] = []
    logger = logging.getLogger("runtime.reporting")
    watcher = logging.Handler()
    watcher.emit = lambda line: lines.append(JsonFormatter().format(line))
    logger.addHandler(watcher)
    logger.setLevel(logging.INFO)
    telemetry = Telemetry()
    try:
        await bus.send(Outgoing(topics.requests, b"k" * 100_000, b"1"))
        async with running(bus, topics, Echo(topics), telemetry=telemetry.role("echo")):
            await until(lambda: len(lines) == 1)
    finally:
        logger.removeHandler(watcher)
        logger.setLevel(logging.NOTSET)

    assert "k" * 64 in lines[0]
    assert len(lines[0]) < 1_000


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 0, 2**63 - 1])
def test_a_time_of_any_size_is_a_wait_within_bounds(timestamp_ms: int):
    telemetry = Telemetry()
    record = Record("t", 0, 0, None, None, timestamp_ms=timestamp_ms)
    work = Work(record, OffsetTracker(), taken_ms=1_700_000_000_000, attempts=1)

    report(telemetry.role("echo"), work, Done("done", 0), 0.1)

    labels = {"role": "echo"}
    waited_s = telemetry.registry.get_sample_value("tokenfleet_record_queue_seconds_sum", labels)
    assert 0 <= waited_s <= 24 * 3600
