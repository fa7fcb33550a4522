"""The content digest, computed off the event loop where that takes longer than a hop."""

import asyncio

from blake3 import blake3

_INLINE_BYTES = 128 * 1024  # under 0.2 ms: cheaper than a thread


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


async def digest_off_loop(data: bytes) -> str:
    if len(data) <= _INLINE_BYTES:
        return digest_of(data)
    return await asyncio.to_thread(digest_of, data)
