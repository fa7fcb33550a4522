"""Threads for work that a caller can make slow, so that nobody else waits for it.

Knows not what the work is.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from schemas.errors import Busy

T = TypeVar("T")


class ThreadsApart:
    """A few calls run, a few wait, all others come again later and hold no slot until then."""

    def __init__(self, threads: int, waiting: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._most = threads + waiting
        self._count = 0

    async def run(self, call: Callable[..., T], *args: object) -> T:
        """Its result. Raise Busy where too many are before it."""
        if self._count >= self._most:
            raise Busy("too many others are rendered by templates of their own")
        loop = asyncio.get_running_loop()
        future = self._threads.submit(call, *args)
        self._count += 1
        # When it ends, not when the caller leaves: a running call goes on.
        future.add_done_callback(lambda done: _call_soon(loop, self._leave, done))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let go of what waits; what runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: Future[Any]) -> None:
        self._count -= 1


def _call_soon(
    loop: asyncio.AbstractEventLoop, call: Callable[[Future[Any]], None], done: Future[Any]
) -> None:
    with suppress(RuntimeError):  # the loop may have been closed before
        loop.call_soon_threadsafe(call, done)
