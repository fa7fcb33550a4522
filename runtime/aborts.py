"""Requests that nobody waits for any more, as `control` tells. Knows no stage."""

import asyncio
import logging
from collections.abc import Callable

from runtime.bus import Bus, Consumer, Record, TopicPartition
from runtime.errors import BusError
from schemas.envelope import now_ms
from schemas.errors import DecodeError
from schemas.records.control import CONTROL_PARTITION, Abort
from schemas.topics import Topics

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000
_POLL_S = 1.0
_RETRY_S = 0.5


class Aborts:
    """The ids, each until its request's deadline. Shared by the loops of a process."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._until_ms: dict[bytes, int] = {}
        self._listeners: list[Callable[[bytes], None]] = []

    def watch(self, on_abort: Callable[[bytes], None]) -> None:
        """Call with the key of each request that is aborted from now on."""
        self._listeners.append(on_abort)

    def add(self, abort: Abort) -> None:
        key = abort.id.encode()
        self._forget_old()
        self._until_ms[key] = abort.deadline_ms
        for listener in self._listeners:
            listener(key)

    def has(self, key: bytes | None) -> bool:
        return key in self._until_ms

    def _forget_old(self) -> None:
        """Ids come roughly in the order of their deadlines."""
        now = now_ms()
        while self._until_ms:
            oldest = next(iter(self._until_ms))
            if self._until_ms[oldest] > now and len(self._until_ms) < self._limit:
                return
            del self._until_ms[oldest]


class AbortReader:
    """Background task of a process that works on requests."""

    def __init__(self, bus: Bus, topics: Topics, aborts: Aborts) -> None:
        self._bus = bus
        self._partition = TopicPartition(topics.control, CONTROL_PARTITION)
        self._aborts = aborts
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Aborts from now on are seen."""
        self._consumer = self._bus.reader(self._partition)
        await self._consumer.start()
        self._task = asyncio.create_task(self._read(self._consumer), name="abort-reader")

    async def stop(self) -> None:
        """Safe to call twice, and after a failed start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()

    async def run(self) -> None:
        """Until the reader ends, which it does only by `stop` or a bug; raises what ended it."""
        assert self._task is not None, "started before it runs"
        await asyncio.shield(self._task)

    async def _read(self, consumer: Consumer) -> None:
        while True:
            try:
                records = await consumer.poll(max_records=500, timeout_s=_POLL_S)
            except BusError as error:
                logger.warning("aborts_unreadable", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_S)
                continue
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        """Other records of `control` are for others."""
        try:
            self._aborts.add(Abort.decode(record.value))
        except DecodeError:
            logger.debug("control_skipped", extra={"offset": record.offset})
