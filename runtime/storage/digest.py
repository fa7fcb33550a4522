"""The content digest, computed off the event loop where that takes longer than a hop."""

import asyncio

from blake3 import blake3

_PARALLEL_BYTES = 16 * 1024 * 1024  # below, other work on the other cores is worth more
_INLINE_BYTES = 512 * 1024  # some 0.1 ms: cheaper than a thread


def digest_of(data: bytes) -> str:
    """Blocking; on all cores where the data is large."""
    threads = blake3.AUTO if len(data) > _PARALLEL_BYTES else 1
    return blake3(data, max_threads=threads).hexdigest()


async def digest_off_loop(data: bytes) -> str:
    if len(data) <= _INLINE_BYTES:
        return digest_of(data)
    return await asyncio.to_thread(digest_of, data)
