"""What the runtime's tests have in common."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from runtime.bus import Bus, Consumer, Outgoing, Record, TopicPartition

PATIENCE_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def take(consumer: Consumer, count: int) -> list[Record]:
    """Exactly so many records, within patience."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await consumer.poll(max_records=count - len(records), timeout_s=0.5)
    return records


async def send_all(bus: Bus, topic: str, keys: Sequence[bytes | None]) -> list[tuple[int, int]]:
    """One record per key; the value is its position."""
    sends = (bus.send(Outgoing(topic, key, str(n).encode())) for n, key in enumerate(keys))
    return await asyncio.gather(*sends)


class Listener:
    """Remembers what it was told."""

    def __init__(self, on_revoked: Callable[[], Awaitable[None]] | None = None) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self._on_revoked = on_revoked

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", frozenset(partitions)))
        if self._on_revoked:
            await self._on_revoked()

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", frozenset(partitions)))
