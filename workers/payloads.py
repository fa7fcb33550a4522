"""Reads an item's payload from a job, decoded. Knows no model and no tensor library."""

import asyncio

from runtime.stage import Job
from schemas.envelope import Item, kwargs_part, metadata_part
from schemas.errors import ApiError, DecodeError
from schemas.mm_item import Fields, decode_item

_INLINE_BYTES = 64 * 1024
"""Up to here a hop to a thread costs more than decoding."""


async def read_fields(job: Job, item: Item) -> Fields | None:
    """The full payload, else the metadata; None where neither came. ApiError for garbage."""
    for name in (
        kwargs_part(item.modality, item.key),
        metadata_part(item.modality, item.key),
    ):
        if job.has(name):
            return await _decoded(await job.read(name), item)
    return None


async def _decoded(data: bytes, item: Item) -> Fields:
    try:
        if len(data) <= _INLINE_BYTES:
            return decode_item(data)
        return await asyncio.to_thread(decode_item, data)
    except DecodeError as error:
        raise ApiError(
            f"The payload of a {item.modality} item cannot be read: {error}", param="kwargs_data"
        ) from None
