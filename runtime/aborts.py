"""Tells every process that nobody waits for a request any more, and hears when others say so.

An abort is a record on `control`: key `abort`, value the internal request id. It is read without a
group, from the moment a process starts. Knows no stage.
"""

import asyncio
import logging
from collections.abc import Callable

from runtime.bus import Bus, Consumer, Outgoing, TopicPartition
from runtime.errors import BusError
from schemas.topics import Topics

logger = logging.getLogger(__name__)

KEY = b"abort"
_PARTITION = 0
_MAX_RECORDS = 1000
_POLL_S = 1.0
_RETRY_S = 0.5


def abort_of(request_id: str, topics: Topics) -> Outgoing:
    return Outgoing(topics.control, KEY, request_id.encode(), partition=_PARTITION)


class Aborts:
    """A process's ear on `control`; `start`, `run`, `close`."""

    def __init__(self, bus: Bus, topics: Topics) -> None:
        self._bus = bus
        self._source = TopicPartition(topics.control, _PARTITION)
        self._consumer: Consumer | None = None
        self._listeners: list[Callable[[bytes], None]] = []

    def tell(self, listener: Callable[[bytes], None]) -> None:
        """Call it with the key of every request that is aborted from now on."""
        self._listeners.append(listener)

    async def start(self) -> None:
        self._consumer = self._bus.reader(self._source)
        await self._consumer.start()

    async def run(self) -> None:
        """Until cancelled."""
        assert self._consumer is not None, "start comes first"
        while True:
            try:
                records = await self._consumer.poll(max_records=_MAX_RECORDS, timeout_s=_POLL_S)
            except BusError as error:
                logger.warning("aborts_unreadable", extra={"error": repr(error)})
                await asyncio.sleep(_RETRY_S)
                continue
            for record in records:
                if record.key == KEY and record.value:
                    for listener in self._listeners:
                        listener(record.value)

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
