"""One thread that owns a device and runs many jobs on it in small steps, turn by turn.

Event loops await results here and never compute. Knows no tensors and no models.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from schemas.envelope import now_ms
from schemas.errors import ApiError, FailureCode, Transient

logger = logging.getLogger(__name__)
T = TypeVar("T", covariant=True)
R = TypeVar("R")


class Steps(Protocol[T]):
    """Work in pieces short enough that a cancellation between two of them is soon."""

    def step(self) -> bool:
        """Do one piece; True once done."""

    def result(self) -> T | None:
        """What there is since the last time it was asked for; None where there is nothing new."""


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing that a task says."""

    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class _Task(Generic[R]):
    start: Callable[[], Steps[R]]
    deadline_ms: float
    loop: asyncio.AbstractEventLoop
    results: "asyncio.Queue[R | _End]"
    is_cancelled: threading.Event = field(default_factory=threading.Event)
    steps: Steps[R] | None = None

    def tell(self, *news: R | _End) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is gone
            self.loop.call_soon_threadsafe(self._put, news)

    def _put(self, news: "tuple[R | _End, ...]") -> None:
        for item in news:
            self.results.put_nowait(item)


class DeviceThread:
    """Started by its owner, closed once; `run` may be called from any event loop in between."""

    def __init__(
        self,
        name: str,
        *,
        max_active: int,
        translate: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self._inbox: queue.SimpleQueue[_Task[Any] | None] = queue.SimpleQueue()
        self._max_active = max_active
        self._translate = translate
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._is_closed = False

    def start(self) -> None:
        self._thread.start()

    async def run(self, start: Callable[[], Steps[R]], *, deadline_ms: float) -> R:
        """The one result of a job that has a single one, at its end.

        A cancelled caller leaves nothing behind: the job is dropped before its next step.
        """
        async with contextlib.aclosing(self.stream(start, deadline_ms=deadline_ms)) as results:
            async for result in results:
                return result
        raise RuntimeError("a job ended without a result")

    async def stream(
        self, start: Callable[[], Steps[R]], *, deadline_ms: float
    ) -> AsyncGenerator[R, None]:
        """Make the steps on the thread, run them to the end, and yield each result as it comes.

        Closing the generator, or cancelling its reader, drops the job before its next step.
        """
        if self._is_closed:
            raise Transient("the engine is closed")
        task = _Task(start, deadline_ms, asyncio.get_running_loop(), asyncio.Queue[R | _End]())
        self._inbox.put(task)
        try:
            while not isinstance(news := await task.results.get(), _End):
                yield news
            if news.error is not None:
                raise news.error
        finally:
            task.is_cancelled.set()

    async def close(self, timeout_s: float = 10.0) -> None:
        """Fail what is left and wait for the thread. Safe to call twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._inbox.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_s)

    def _work(self) -> None:
        active: list[_Task[Any]] = []
        while self._admit(active):
            active = [task for task in active if not self._advance(task)]
        for task in [*active, *self._waiting()]:
            task.tell(_End(Transient("the engine is closing")))

    def _admit(self, active: list[_Task[Any]]) -> bool:
        """Take what waits, as far as there is room; sleep while nothing is to do."""
        while len(active) < self._max_active:
            try:
                task = self._inbox.get(block=not active)
            except queue.Empty:
                break
            if task is None:
                return False
            active.append(task)
        return not self._is_closed

    def _advance(self, task: _Task[Any]) -> bool:
        """One step of one task; True when it is over, whichever way."""
        if task.is_cancelled.is_set():
            return True
        try:
            return self._step(task)
        except BaseException as error:
            task.tell(_End(self._translate(error)))
            return True

    def _step(self, task: _Task[Any]) -> bool:
        if now_ms() >= task.deadline_ms:
            raise ApiError(
                "The deadline of the request has passed.",
                status=504,
                type="GatewayTimeout",
                code=FailureCode.DEADLINE_EXCEEDED,
            )
        if task.steps is None:
            task.steps = task.start()
        is_over = task.steps.step()
        result = task.steps.result()
        news = [] if result is None else [result]
        if is_over:
            task.tell(*news, _End())
        elif news:
            task.tell(*news)
        return is_over

    def _waiting(self) -> list[_Task[Any]]:
        waiting = []
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._inbox.get_nowait()
                if task is not None:
                    waiting.append(task)
        return waiting
