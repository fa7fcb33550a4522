"""Writes records so that one that cannot be written harms no other.

aiokafka's idempotent producer numbers the batches of each partition. Any batch that fails for good
leaves a gap there, and from then on the broker refuses everything to that partition: such a
producer is replaced, and what failed with it is written alone.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerClosed

from runtime.bus import Outgoing
from runtime.bus.kafka_errors import translated
from runtime.bus.limits import LARGEST_BYTES
from runtime.errors import BusError
from schemas.topics import MAX_RECORD_BYTES

logger = logging.getLogger(__name__)

_START_S = 10.0
_STOP_S = 10.0


class KafkaProducers:
    """Two connections: one for the fleet's own topics, one for whatever else is named.

    To our own topics records travel in batches, exactly once as far as the broker can tell. To
    others each goes alone and is not numbered: a topic that is gone, or takes only small batches,
    is no concern of its neighbours. Either may write a record twice where it had to repeat itself.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._batching: _Producer | None = None
        self._lone: _Producer | None = None
        self._starting = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    async def start(self) -> None:
        await self._batching_one()
        await self._lone_one()

    async def stop(self) -> None:
        """What is under way is written, within some seconds."""
        self._is_stopped = True
        async with self._starting:
            producers = [producer for producer in (self._batching, self._lone) if producer]
            self._batching = self._lone = None
        await asyncio.gather(*(producer.stop() for producer in producers), *self._retiring)

    async def send(self, record: Outgoing, *, is_own: bool) -> tuple[int, int]:
        """Raise BusError: what it says is about this record, not about others beside it."""
        with translated():
            if is_own and (placed := await self._send_in_batch(record)):
                return placed
            return await (await self._lone_one()).send(record)

    async def _send_in_batch(self, record: Outgoing) -> tuple[int, int] | None:
        """None: the producer is out of step, perhaps by somebody else's record."""
        producer = await self._batching_one()
        try:
            return await producer.send(record)
        except KafkaTimeoutError:  # full: it was not taken
            raise
        except KafkaError as error:
            self._retire(producer, error)
            return None

    async def _batching_one(self) -> "_Producer":
        async with self._starting:
            if self._batching is None:
                options = {"enable_idempotence": True, "max_batch_size": MAX_RECORD_BYTES}
                self._batching = await self._started(options)
            return self._batching

    async def _lone_one(self) -> "_Producer":
        async with self._starting:
            if self._lone is None:
                # No second record fits into a batch of one byte; the first always does.
                self._lone = await self._started({"max_batch_size": 1})
            return self._lone

    async def _started(self, options: Mapping[str, Any]) -> "_Producer":
        if self._is_stopped:
            raise BusError("the bus is stopped", retriable=False)
        producer = _Producer({**self._client, **options})
        await producer.start()
        return producer

    def _retire(self, producer: "_Producer", error: Exception) -> None:
        if self._batching is not producer:
            return
        self._batching = None
        logger.warning("producer_replaced", extra={"error": repr(error)})
        # Its other partitions are in step: what is under way to them is finished.
        task = asyncio.create_task(producer.stop(), name="retire producer")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


class _Producer:
    """One of aiokafka's, from its start to its end; at the end nobody waits for it any more."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._asking: set[asyncio.Task[Any]] = set()
        self._producer = AIOKafkaProducer(
            **options,
            acks="all",
            # A lone record goes at once; what comes while a request is out goes together.
            linger_ms=0,
            # With room for the batch around the largest record.
            max_request_size=LARGEST_BYTES + MAX_RECORD_BYTES,
            # Large parts are claim-checked and tensors do not shrink: not worth the CPU.
            compression_type=None,
        )

    async def start(self) -> None:
        try:
            async with asyncio.timeout(_START_S):
                await self._producer.start()
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise BusError("no broker gave the producer its id in time") from error
            raise

    async def send(self, record: Outgoing) -> tuple[int, int]:
        if self._producer.client.cluster.partitions_for_topic(record.topic) is None:
            await self._ask_about(record.topic)
        try:
            acknowledged = await self._producer.send_and_wait(
                record.topic,
                record.value,
                record.key,
                partition=record.partition,
                headers=list(record.headers.items()),
            )
        except AssertionError as error:  # of a partition that was added a moment ago
            self._producer.client.force_metadata_update()
            raise BusError(f"{record.topic} has no partition {record.partition} yet") from error
        return acknowledged.partition, acknowledged.offset

    async def stop(self) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await self._producer.stop()
        except (KafkaError, TimeoutError) as error:
            logger.warning("producer_not_stopped", extra={"error": repr(error)})
            self._producer._message_accumulator.fail_all(ProducerClosed())
            await self._producer.client.close()
        for asking in self._asking:
            asking.cancel()

    async def _ask_about(self, topic: str) -> None:
        """A connection that is closed meanwhile never answers: `stop` ends the wait."""
        asking = asyncio.create_task(self._producer.partitions_for(topic))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            await asyncio.wait([asking])
        finally:
            if not asking.done():
                asking.cancel()
        if asking.cancelled():
            raise ProducerClosed
        asking.result()
