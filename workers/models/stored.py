"""What the store remembers of a processed item, so that nobody processes it again.

One named object per namespace and hash of the content, which only who has the content can name;
and one per uuid that tells which content it stands for. Knows neither pixels nor families.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgpack
from blake3 import blake3

from runtime.storage import BlobStore
from schemas.envelope import BlobRef
from schemas.identity import entry_key
from workers.render.media import Replacement, Span

_VERSION = 2


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as processed once: where its tensors are, and what its placeholder looks like."""

    modality: str
    content: str
    """Its hash, without any uuid."""
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
                "content": self.content,
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
                content=value["content"],
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
    another tenant, must not meet.
    """
    text = json.dumps([model, processing, tenant], sort_keys=True, default=str)
    return blake3(text.encode()).hexdigest(length=16)


def object_name(namespace_: str, content: str) -> str:
    """Of an item's tensors."""
    return f"tensors/{namespace_}/{entry_key(content)}"


def uuid_name(namespace_: str, modality: str, mm_hash: str, salt: str | None) -> str:
    """Of what a uuid, or the hash that it comes to, stands for.

    A uuid may be any text, the name of an object may not.
    """
    return f"uuids/{namespace_}/{modality}/{entry_key(mm_hash, salt=salt)}"


def address(namespace_: str, content: str) -> str:
    """Stands for an item's tensors where their own digest is not asked for."""
    return blake3(object_name(namespace_, content).encode()).hexdigest()


async def find(
    blobs: BlobStore, namespace_: str, content: str, *, modality: str
) -> StoredItem | None:
    """The stored item, if it can be used: its tensors are there, and their age is refreshed."""
    item = await _read(blobs, object_name(namespace_, content))
    if item is None or item.modality != modality or item.content != content:
        return None
    return item if item.kwargs is not None and await blobs.refresh(item.kwargs) else None


async def remember(blobs: BlobStore, namespace_: str, item: StoredItem) -> None:
    """The tensors have to be in the store already: whoever reads the name may want them at once."""
    await blobs.put_named(object_name(namespace_, item.content), item.encode())


async def find_uuid(blobs: BlobStore, name: str) -> StoredItem | None:
    """What a uuid stood for when it was sent last, but for the tensors (see `uuid_name`)."""
    return await _read(blobs, name)


async def remember_uuid(blobs: BlobStore, name: str, item: StoredItem) -> None:
    """From now on the uuid stands for this content."""
    known = await _read(blobs, name)
    if known is None or known.content != item.content:
        await blobs.put_named(name, replace(item, kwargs=None).encode())


async def _read(blobs: BlobStore, name: str) -> StoredItem | None:
    data = await blobs.get_named(name)
    return StoredItem.decode(data) if data is not None else None
