"""Screens every answer to a fetch before aiokafka sees it, and bounds what they hold together.

aiokafka (`consumer/fetcher.py`, `record/default_records.py`) decompresses without a limit and on
the event loop, and one record that it cannot parse ends its iterator before the position has
moved: the partition, and whoever polls, would fail at the same place for ever.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest

from runtime.bus.record_batches import MAX_EXPANDED_BYTES, Screened, is_heavy, screen

logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 2 * MAX_EXPANDED_BYTES
"""Of what one consumer has fetched, decompressed and not yet given out."""

_LIGHT_BYTES = 16 * 1024
# A partition that has to wait for room is asked for again after this.
_NO_ROOM_S = 0.05


class ScreenedFetches:
    """Stands between one aiokafka consumer and its connections, from before it starts."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._send = consumer._client.send
        self._held: dict[KafkaPartition, int] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        consumer._client.send = self._screened_send

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _screened_send(
        self, node_id: Any, request: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT
    ) -> Any:
        answer = await self._send(node_id, request, group=group)
        if isinstance(request, FetchRequest):
            try:
                await self._screen(request, answer)
            except Exception as error:
                # Of this kind aiokafka tries again; of any other its fetching ends for good.
                logger.exception("fetch_not_screened")
                raise KafkaError("a fetched answer could not be screened") from error
        return answer

    async def _screen(self, request: FetchRequest, answer: Any) -> None:
        asked = {
            KafkaPartition(topic, partition): offset
            for topic, partitions in request.topics
            for partition, offset, *_ in partitions
        }
        room, is_starved = self._room(), False
        topics = []
        for topic, partitions in answer.topics:
            screened_partitions = []
            for partition in partitions:
                source = KafkaPartition(topic, partition[0])
                screened = await self._screen_partition(source, partition, asked[source], room)
                room -= screened.spent
                is_starved |= screened.is_cut and not screened.data
                screened_partitions.append((*partition[:-1], screened.data))
            topics.append((topic, screened_partitions))
        answer.topics = topics
        if is_starved:
            await asyncio.sleep(_NO_ROOM_S)

    async def _screen_partition(
        self, source: KafkaPartition, partition: Any, first: int, room: int
    ) -> Screened:
        data = partition[-1] or b""
        if not data:
            return Screened(b"", 0)
        limits: Mapping[str, int] = {"first": first, "end": max(partition[2], first + 1)}
        if is_heavy(data, _LIGHT_BYTES):
            screening = asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: screen(data, room=room, **limits)
            )
            screened = await screening
        else:
            screened = screen(data, room=room, **limits)
        for problem in screened.problems:
            where = {"topic": source.topic, "partition": source.partition, "error": problem}
            logger.error("records_unreadable", extra=where)
        self._held[source] = len(screened.data)
        return screened

    def _room(self) -> int:
        """Left of what may be held, after all that aiokafka still has of earlier answers."""
        kept = self._consumer._fetcher._records if self._consumer._fetcher else {}
        self._held = {source: size for source, size in self._held.items() if source in kept}
        return MAX_HELD_BYTES - sum(self._held.values())
