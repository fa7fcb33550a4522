"""Aborts reach every process that listens."""

import asyncio

from runtime.aborts import Aborts, abort_of
from runtime.bus import Bus, Outgoing
from schemas.topics import Topics
from tests.runtime.builders import until


async def test_listeners_hear_of_aborts_from_their_start_on(bus: Bus, topics: Topics) -> None:
    heard: list[bytes] = []
    await bus.send(abort_of("before", topics))
    aborts = Aborts(bus, topics)
    aborts.tell(heard.append)
    await aborts.start()
    running = asyncio.create_task(aborts.run())
    try:
        await bus.send(Outgoing(topics.control, b"store-id", b"x", partition=0))
        await bus.send(Outgoing(topics.control, b"abort", None, partition=0))
        await bus.send(abort_of("after", topics))
        await until(lambda: bool(heard))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await aborts.close()

    assert heard == [b"after"]
