"""Removes from the blob store what is too old for anybody to ask for."""

import asyncio
import logging

from runtime.errors import StoreError
from runtime.storage import BlobStore

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 600.0


class Sweeper:
    """A routine: `run` never returns by itself. Any number of processes may sweep one store."""

    def __init__(self, blobs: BlobStore, max_age_s: float) -> None:
        self._blobs = blobs
        self._max_age_s = max_age_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(self._max_age_s / 4, _LONGEST_PAUSE_S))
            await self.sweep()

    async def sweep(self) -> None:
        try:
            num_removed = await self._blobs.sweep(max_age_s=self._max_age_s)
        except StoreError as error:  # next time, then: nothing waits for it
            logger.warning("sweep_failed", extra={"error": str(error)})
        else:
            logger.debug("store_swept", extra={"num_removed": num_removed})
