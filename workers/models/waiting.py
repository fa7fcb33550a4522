"""Waiting for several coroutines, and sharing one between several waiters. Knows no media."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def in_order(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all; results in order. The first failure in order is raised once all have stopped."""
    if not calls:
        return []
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    failures = [t.exception() for t in tasks if not t.cancelled() and t.exception()]
    for failure in failures:
        assert failure is not None
        raise failure
    return [task.result() for task in tasks]


class SingleFlight(Generic[T]):
    """At most one call per key at a time; whoever comes meanwhile waits for its result.

    A waiter that is cancelled leaves the others and the call alone.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    async def run(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_awaited(call))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: Hashable, task: asyncio.Task[T]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # every waiter may have left


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
