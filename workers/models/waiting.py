"""Waiting for several coroutines, and sharing one between several waiters. Knows no media."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def in_order(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all; results in order. The first failure in order is raised once all have stopped."""
    results, failure = await until_failure(calls)
    if failure is not None:
        raise failure
    return results


async def until_failure(
    calls: Sequence[Coroutine[Any, Any, T]],
) -> tuple[list[T], Exception | None]:
    """Run all; the results before the first failure in order, and that failure.

    Which one is first does not depend on which one takes longer. Those after it are stopped.
    """
    results: list[T] = []
    tasks = [asyncio.ensure_future(call) for call in calls[1:]]
    try:
        for call in [*calls[:1], *tasks]:  # the first one needs no task: it is waited for at once
            results.append(await call)
    except Exception as failure:
        return results, failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results, None


class SingleFlight(Generic[T]):
    """At most one call per key at a time; whoever comes meanwhile waits for its result.

    A waiter that is cancelled leaves the others alone; the last one takes the call with it.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}
        self._waiters: Counter[asyncio.Task[T]] = Counter()

    async def run(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(_awaited(call))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        self._waiters[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._leave(key, task)

    def _leave(self, key: Hashable, task: asyncio.Task[T]) -> None:
        self._waiters[task] -= 1
        if self._waiters[task]:
            return
        del self._waiters[task]
        if not task.done():
            self._forget(key, task)
            task.cancel()

    def _ended(self, key: Hashable, task: asyncio.Task[T]) -> None:
        self._forget(key, task)
        if not task.cancelled():
            task.exception()  # every waiter may have left

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._running.get(key) is task:
            del self._running[key]


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
