"""The items of a request as encode sees them: one group per distinct hash, and their payloads.

Knows no model.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.stage import Job
from schemas.envelope import Item, kwargs_part, metadata_part
from schemas.errors import ApiError, DecodeError
from schemas.mm_item import Fields, decode_item


@dataclass(frozen=True, slots=True)
class Group:
    """Items that are the same thing at several places."""

    items: tuple[Item, ...]
    indices: tuple[int, ...]
    """Positions among all items of the request, in prompt order."""

    @property
    def item(self) -> Item:
        return self.items[0]

    def has_kwargs(self, job: Job) -> bool:
        return job.has(kwargs_part(self.item.modality, self.item.mm_hash))


def groups_of(items: Sequence[Item]) -> list[Group]:
    """In the order of first appearance."""
    indices: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(items):
        indices.setdefault((item.modality, item.mm_hash), []).append(index)
    return [
        Group(items=tuple(items[i] for i in found), indices=tuple(found))
        for found in indices.values()
    ]


async def read_fields(job: Job, item: Item) -> Fields | None:
    """The item's full payload, else its metadata; None where neither came. ApiError for garbage."""
    for name in (
        kwargs_part(item.modality, item.mm_hash),
        metadata_part(item.modality, item.mm_hash),
    ):
        if job.has(name):
            data = await job.read(name)
            try:
                return await asyncio.to_thread(decode_item, data)
            except DecodeError as error:
                raise ApiError(
                    f"The payload of a {item.modality} item cannot be read: {error}",
                    param="kwargs_data",
                ) from None
    return None
