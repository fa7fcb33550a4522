"""Proves that the roles of a fleet see the same store. Knows no role.

A store has an id; the first id announced on the `control` topic is the fleet's, and a process that
reads another one is told so. Ids are compared, never contents.
"""

import uuid

from runtime.bus import Bus, Outgoing, TopicPartition
from runtime.errors import StoreError
from runtime.storage import BlobStore
from runtime.storage.keys import STORE_ID
from schemas.topics import Topics

KEY = b"store-id"
"""Key of the announcements; readers of `control` skip what they do not know."""

_POLL_S = 0.5


async def store_id(blobs: BlobStore) -> str:
    """The store's id, made by whoever asks first."""
    await blobs.put_if_absent(STORE_ID, uuid.uuid4().hex.encode())
    value = await blobs.get_named(STORE_ID)
    if value is None:
        raise StoreError("the store does not give back what was written")
    return value.decode(errors="replace")


class SharedStore:
    """Checked once at start; `reason` is a readiness check."""

    def __init__(self, bus: Bus, topics: Topics, blobs: BlobStore) -> None:
        self._bus = bus
        self._partition = TopicPartition(topics.control, 0)
        self._blobs = blobs
        self._reason: str | None = "the store is not proven to be shared yet"

    def reason(self) -> str | None:
        return self._reason

    async def prove(self) -> None:
        """Announce our id, and compare it with the first one that is there."""
        ours = await store_id(self._blobs)
        announcement = Outgoing(
            self._partition.topic, KEY, ours.encode(), partition=self._partition.partition
        )
        _, offset = await self._bus.send(announcement)
        first = await self._first_announced(before=offset)
        self._reason = None
        if first not in (None, ours):
            self._reason = f"the store has id {ours}, the rest of the fleet uses {first}"

    async def _first_announced(self, *, before: int) -> str | None:
        reader = self._bus.reader(self._partition, start=0)
        await reader.start()
        try:
            while True:
                for record in await reader.poll(max_records=1000, timeout_s=_POLL_S):
                    if record.offset >= before:
                        return None
                    if record.key == KEY and record.value is not None:
                        return record.value.decode(errors="replace")
        finally:
            await reader.stop()
