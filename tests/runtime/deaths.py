"""A worker process for the tests that kill it: `python -m tests.runtime.deaths URL PREFIX`.

Prints one line per record taken, and takes long over each.
"""

import asyncio
import sys
from collections.abc import Sequence

from runtime.bus import Outgoing, Record, open_bus
from runtime.loop import ConsumeLoop
from runtime.settings import FleetSettings
from schemas.topics import Topics


class Slow:
    def __init__(self, topics: Topics) -> None:
        self.topics = topics

    async def handle(self, record: Record, emit: object) -> Sequence[Outgoing]:
        print((record.value or b"").decode(), flush=True)
        await asyncio.sleep(0.05 if int(record.value or b"0") % 2 else 3600)
        return [Outgoing(self.topics.responses, record.key, record.value)]

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        raise error


async def main(url: str, prefix: str) -> None:
    topics = Topics(prefix)
    bus = open_bus(url, FleetSettings(topic_prefix=prefix, session_timeout_ms=6000))
    await bus.start()
    loop = ConsumeLoop(bus, [topics.requests], group="workers", handler=Slow(topics))
    await loop.start()
    await loop.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
