"""Reads the replies of one ingress replica from the partition its id picks. Knows nothing of HTTP.

A reply record carries the header `replica` and a `schemas.records.reply.Reply`.
"""

import asyncio
import logging
import zlib
from collections.abc import Coroutine
from typing import Any

import msgpack
from pydantic import ValidationError

from ingress.pending import PendingReplies
from runtime.bus import Bus, Consumer, Record, TopicPartition
from runtime.errors import BusError, StoreError
from runtime.storage import BlobStore
from schemas.envelope import Outcome
from schemas.errors import DecodeError
from schemas.records.reply import Reply

POLL_S = 1.0
MAX_RECORDS = 500
RETRY_S = 0.5
REPLICA_HEADER = "replica"

logger = logging.getLogger(__name__)


def reply_partition(replica: str, num_partitions: int) -> int:
    """The partition of `replies` that a replica reads: stable across processes and restarts."""
    return zlib.crc32(replica.encode()) % num_partitions


class ReplyReader:
    """Background task that turns reply records into outcomes of pending requests."""

    def __init__(
        self, bus: Bus, blobs: BlobStore, pending: PendingReplies, *, replica: str
    ) -> None:
        self._bus = bus
        self._blobs = blobs
        self._pending = pending
        self._replica = replica.encode()
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._fetches: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self, partition: TopicPartition) -> None:
        """Return once the end of the partition is fixed: every reply to a later request is seen."""
        self._consumer = self._bus.reader(partition)
        await self._consumer.start()
        self._task = asyncio.create_task(self._run(self._consumer), name="reply-reader")

    async def close(self) -> None:
        """Safe to call twice, and after a failed start."""
        tasks = [*self._fetches, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()

    async def wait(self) -> None:
        """Until the reader ends, which it does only by `close` or a bug; raises what ended it."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self, consumer: Consumer) -> None:
        while True:
            try:
                records = await consumer.poll(max_records=MAX_RECORDS, timeout_s=POLL_S)
            except BusError as error:
                logger.warning("replies_unreadable", extra={"error": str(error)})
                await asyncio.sleep(RETRY_S)
                continue
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        if record.headers.get(REPLICA_HEADER) != self._replica:
            return
        try:
            reply = Reply.decode(record.value)
        except Exception as error:  # of whatever kind: the replies behind it are waited for
            trace = None if isinstance(error, DecodeError) else error
            what = {"offset": record.offset, "error": str(error)}
            logger.error("reply_undecodable", extra=what, exc_info=trace)
            return
        if reply.piece is not None:
            self._pending.push(reply.id, reply.piece)
        elif reply.outcome is not None:
            self._pending.push(reply.id, reply.outcome)
        elif reply.outcome_name is not None and self._pending.is_waiting(reply.id):
            self._spawn(self._fetch(reply.id, reply.outcome_name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch(self, request_id: str, name: str) -> None:
        """One that cannot be read ends the wait too, or its caller would sit until the deadline."""
        try:
            self._pending.push(request_id, _outcome(await self._blobs.get_named(name)))
        except (StoreError, DecodeError) as error:
            logger.error("outcome_unreadable", extra={"outcome": name, "error": str(error)})
            self._pending.push(request_id, StoreError(f"{name}: {error}"))


def _outcome(data: bytes | None) -> Outcome:
    if data is None:
        raise DecodeError("the store does not hold it")
    try:
        return Outcome.model_validate(msgpack.unpackb(data, strict_map_key=False))
    # TypeError: a map whose key is a list.
    except (ValidationError, ValueError, TypeError, msgpack.UnpackException) as error:
        raise DecodeError(f"not an outcome: {error}") from error
