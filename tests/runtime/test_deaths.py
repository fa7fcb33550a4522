"""What survives a SIGKILL: of a worker in the middle of its work, and of the broker itself."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.bus import Bus, Outgoing, open_bus
from runtime.errors import BusError
from runtime.kafka_local import LocalKafka, why_not
from runtime.loop import ConsumeLoop
from runtime.settings import FleetSettings
from schemas.topics import Topics
from tests.runtime.builders import send_all, until
from tests.runtime.test_loop import Echo, number, redelivered, running

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def opened(servers: str, topics: Topics) -> AsyncIterator[Bus]:
    settings = FleetSettings(topic_prefix=topics.prefix, session_timeout_ms=6000)
    bus = open_bus(f"kafka://{servers}", settings)
    await bus.start()
    await bus.create_topics(topics.all(), num_partitions=4)
    yield bus
    await bus.stop()


async def answered(bus: Bus, topics: Topics, count: int) -> set[int]:
    consumer = bus.consumer([topics.responses], group="answers")
    await consumer.start()
    seen: set[int] = set()
    async with asyncio.timeout(60):
        while len(seen) < count:
            seen |= {number(r) for r in await consumer.poll(max_records=500, timeout_s=0.5)}
    await consumer.stop()
    return seen


async def send_at_last(bus: Bus, record: Outgoing) -> None:
    """However long the broker takes to come back."""
    while True:
        try:
            await bus.send(record)
            return
        except BusError as error:
            if not error.retriable:
                raise


async def test_what_a_killed_worker_had_in_its_hands_another_does(
    kafka_servers: str, topics: Topics
):
    async with opened(kafka_servers, topics) as bus:
        await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(100)])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.runtime.deaths",
            f"kafka://{kafka_servers}",
            topics.prefix,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        taken = {int(await asyncio.wait_for(process.stdout.readline(), 60)) for _ in range(17)}
        process.kill()
        await process.wait()

        successor = Echo(topics)
        async with running(bus, topics, successor):
            assert await answered(bus, topics, 100) == set(range(100))

        assert {n for n in taken if n % 2 == 0} <= set(successor.numbers)
        assert await redelivered(bus, topics, 0) == []


async def test_acknowledged_records_survive_the_brokers_death_and_the_loop_goes_on(topics: Topics):
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    broker = LocalKafka()
    try:
        await asyncio.to_thread(broker.start)
        async with opened(broker.servers, topics) as bus:
            handler = Echo(topics)
            loop = ConsumeLoop(bus, [topics.requests], group="workers", handler=handler)
            await loop.start()
            run = asyncio.create_task(loop.run())
            await send_all(bus, topics.requests, [f"k{n}".encode() for n in range(50)])
            await until(lambda: len(handler.started) >= 10)

            await asyncio.to_thread(broker.kill)
            late = asyncio.create_task(send_at_last(bus, Outgoing(topics.requests, b"l", b"50")))
            await asyncio.to_thread(broker.start)
            await late

            assert await answered(bus, topics, 51) == set(range(51))
            assert not run.done()
            await loop.stop(10)
    finally:
        await asyncio.to_thread(broker.stop)
