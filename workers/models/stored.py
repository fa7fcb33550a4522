"""What the store remembers of a processed item, so that nobody processes it again.

One named object per (namespace, hash). Other stages find an item's tensors here too: for a heal, or
for a request that brings only metadata. Knows neither pixels nor families.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgpack
from blake3 import blake3

from runtime.storage import BlobStore
from runtime.storage.names import is_plain
from schemas.envelope import BlobRef
from workers.render.media import Replacement, Span

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as processed once: where its tensors are, and what its placeholder looks like."""

    modality: str
    kwargs: BlobRef | None
    """The full item (02 §4); None where only its shape was ever needed."""
    metadata: bytes | None
    replacement: Replacement
    embeds: list[Span] | None

    def with_tensors(self, ref: BlobRef) -> "StoredItem":
        return replace(self, kwargs=ref)

    def encode(self) -> bytes:
        ref = self.kwargs
        packed: bytes = msgpack.packb(
            {
                "version": _VERSION,
                "modality": self.modality,
                "kwargs": None if ref is None else [ref.digest, ref.size],
                "metadata": self.metadata,
                "runs": [list(run) for run in self.replacement.runs],
                "embeds": self.embeds,
            }
        )
        return packed

    @classmethod
    def decode(cls, data: bytes) -> "StoredItem | None":
        """None for what another version wrote, or what is damaged: the item is made again."""
        try:
            value = msgpack.unpackb(data)
            if value["version"] != _VERSION:
                return None
            ref = value["kwargs"]
            return cls(
                modality=value["modality"],
                kwargs=None if ref is None else BlobRef(digest=ref[0], size=ref[1]),
                metadata=value["metadata"],
                replacement=Replacement(tuple((run[0], run[1]) for run in value["runs"])),
                embeds=None if value["embeds"] is None else [(s, n) for s, n in value["embeds"]],
            )
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException):
            return None


def namespace(*, model: str, processing: Mapping[str, Any], tenant: str) -> str:
    """A plain name for everything besides the hash that decides the tensors.

    The hash covers the model's *name*; another processor configuration under the same name, and
    another tenant, must not meet (a caller may choose hashes by giving uuids).
    """
    text = json.dumps([model, processing, tenant], sort_keys=True, default=str)
    return blake3(text.encode()).hexdigest(length=16)


def object_name(namespace_: str, mm_hash: str) -> str:
    """A uuid may be any text, the name of an object may not."""
    plain = is_plain(mm_hash) and not mm_hash.startswith("=")
    key = mm_hash if plain else "=" + blake3(mm_hash.encode()).hexdigest()
    return f"tensors/{namespace_}/{key}"


def address(namespace_: str, mm_hash: str) -> str:
    """Stands for an item's tensors where their own digest is not asked for."""
    return blake3(object_name(namespace_, mm_hash).encode()).hexdigest()


async def find(
    blobs: BlobStore, namespace_: str, mm_hash: str, *, modality: str, with_tensors: bool = True
) -> StoredItem | None:
    """The stored item, if it can be used: its tensors are there, and their age is refreshed."""
    data = await blobs.get_named(object_name(namespace_, mm_hash))
    item = StoredItem.decode(data) if data is not None else None
    if item is None or item.modality != modality:
        return None
    if not with_tensors:
        return item
    return item if item.kwargs is not None and await blobs.refresh(item.kwargs) else None


async def remember(blobs: BlobStore, namespace_: str, mm_hash: str, item: StoredItem) -> None:
    """The tensors have to be in the store already: whoever reads the name may want them at once."""
    await blobs.put_named(object_name(namespace_, mm_hash), item.encode())
