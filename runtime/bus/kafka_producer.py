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
        self._own: AIOKafkaProducer | None = None
        self._lone: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    async def start(self) -> None:
        self._own = await self._started(self._batching())
        self._lone = await self._started(self._separate())

    async def stop(self) -> None:
        """What is under way is written, within some seconds."""
        self._is_stopped = True
        own, lone = self._own, self._lone
        self._own = self._lone = None
        stops = [asyncio.create_task(_stop(producer)) for producer in (own, lone) if producer]
        await asyncio.gather(*stops, *self._retiring, return_exceptions=True)

    async def send(self, record: Outgoing, *, is_own: bool) -> tuple[int, int]:
        """Raise BusError: what it says is about this record, not about others beside it."""
        if is_own and (placed := await self._send_in_batch(record)):
            return placed
        with translated():
            return await _written(await self._lone_producer(), record)

    async def _send_in_batch(self, record: Outgoing) -> tuple[int, int] | None:
        """None: the producer is out of step, perhaps by somebody else's record."""
        producer = await self._own_producer()
        try:
            return await _written(producer, record)
        except KafkaTimeoutError as error:  # full: it was not taken
            with translated():
                raise error
        except KafkaError as error:
            self._retire(producer, error)
            return None

    async def _own_producer(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._own is None:
                self._own = await self._started(self._batching())
            return self._own

    async def _lone_producer(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._lone is None:
                self._lone = await self._started(self._separate())
            return self._lone

    async def _started(self, producer: AIOKafkaProducer) -> AIOKafkaProducer:
        try:
            if self._is_stopped:
                raise BusError("the bus is stopped", retriable=False)
            async with asyncio.timeout(_START_S):
                with translated():
                    await producer.start()
            return producer
        except BaseException as error:
            await _stop(producer)
            if isinstance(error, TimeoutError):
                raise BusError("no broker gave the producer its id in time") from error
            raise

    def _retire(self, producer: AIOKafkaProducer, error: Exception) -> None:
        if self._own is not producer:
            return
        self._own = None
        if self._is_stopped:
            return
        logger.warning("producer_replaced", extra={"error": repr(error)})
        # Its other partitions are in step: what is under way to them is finished.
        task = asyncio.create_task(_stop(producer), name="retire producer")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _batching(self) -> AIOKafkaProducer:
        return self._producer(enable_idempotence=True, max_batch_size=MAX_RECORD_BYTES)

    def _separate(self) -> AIOKafkaProducer:
        # No second record fits into a batch of one byte; the first always does.
        return self._producer(max_batch_size=1)

    def _producer(self, **options: Any) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **self._client,
            **options,
            acks="all",
            # A lone record goes at once; what comes while a request is out goes together.
            linger_ms=0,
            # With room for the batch around the largest record.
            max_request_size=LARGEST_BYTES + MAX_RECORD_BYTES,
            # Large parts are claim-checked and tensors do not shrink: not worth the CPU.
            compression_type=None,
        )


async def _written(producer: AIOKafkaProducer, record: Outgoing) -> tuple[int, int]:
    try:
        acknowledged = await producer.send_and_wait(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=list(record.headers.items()),
        )
    except AssertionError as error:  # of a partition that was added a moment ago
        producer.client.force_metadata_update()
        raise BusError(f"{record.topic} has no partition {record.partition} yet") from error
    return acknowledged.partition, acknowledged.offset


async def _stop(producer: AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(_STOP_S):
            await producer.stop()
    except (KafkaError, TimeoutError) as error:
        logger.warning("producer_not_stopped", extra={"error": repr(error)})
        # Or who waits for an answer waits for ever.
        producer._message_accumulator.fail_all(ProducerClosed())
        await producer.client.close()
