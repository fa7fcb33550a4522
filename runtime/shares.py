"""How many bytes all requests of a process may hold at once. Knows no request.

Belongs to one event loop. The oldest request that holds or waits is never kept waiting, so that
two of them cannot wait for each other; it may take what a single request is allowed on top.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedBytes:
    """Gives shares in the order in which requests came."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._numbers = itertools.count()
        self._held: dict[int, int] = {}
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []

    def claim(self) -> "Claim":
        """For one request."""
        return Claim(self, next(self._numbers))

    async def take(self, number: int, size: int) -> None:
        """Wait until there is room."""
        if size <= 0:
            return
        if not self._waiting and self._has_room(number, size):
            self._grant(number, size)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (number, next(self._numbers), size, future))
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(number, size)
            else:
                future.cancel()
                self._wake()
            raise

    def give(self, number: int, size: int) -> None:
        if size <= 0:
            return
        self.used -= size
        self._held[number] -= size
        if not self._held[number]:
            del self._held[number]
        self._wake()

    def _grant(self, number: int, size: int) -> None:
        self.used += size
        self._held[number] = self._held.get(number, 0) + size

    def _has_room(self, number: int, size: int) -> bool:
        return self.used + size <= self.capacity or number <= min(self._held, default=number)

    def _wake(self) -> None:
        while self._waiting:
            number, _, size, future = self._waiting[0]
            if future.done():
                heapq.heappop(self._waiting)
            elif self._has_room(number, size):
                heapq.heappop(self._waiting)
                self._grant(number, size)
                future.set_result(None)
            else:
                return


class Claim:
    """One request's part of the shared bytes."""

    def __init__(self, shared: SharedBytes, number: int) -> None:
        self._shared = shared
        self._number = number
        self._kept = 0

    async def keep(self, size: int) -> None:
        """Until `close`. A size below 0 counts as none."""
        await self._shared.take(self._number, size)
        self._kept += max(size, 0)

    def give_back(self, size: int) -> None:
        """Of what is kept."""
        self._kept -= size
        self._shared.give(self._number, size)

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        await self._shared.take(self._number, size)
        try:
            yield
        finally:
            self._shared.give(self._number, size)

    def close(self) -> None:
        if self._kept:
            self.give_back(self._kept)
