"""Where large things live: content-addressed blobs and the encoder cache. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.envelope import BlobRef


class BlobStore(Protocol):
    """Content-addressed parts and a few named objects. Errors are StoreError."""

    is_shared: bool
    """Whether another process can read what is written here."""

    async def put(self, data: bytes, *, digest: str | None = None) -> BlobRef:
        """Store under the content's digest. Repeats are free and refresh the age.

        `digest`: by who has computed it already, with `runtime.storage.digest.digest_of`. A store
        that is not shared verifies nothing: there, any digest that stands for the content will do.
        """

    async def get(self, ref: BlobRef) -> bytes:
        """Verified content. StoreError when it is missing or differs."""

    async def refresh(self, ref: BlobRef) -> bool:
        """Keep what is about to be named again: whether it is there, its age as after a `put`."""

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a named object once; False: somebody was first."""

    async def put_named(self, name: str, data: bytes) -> None: ...

    async def get_named(self, name: str) -> bytes | None: ...

    async def sweep(self, *, max_age_s: float) -> int:
        """Remove what is older; return how many objects."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """One item's pooled encoder output."""

    dtype: str
    """torch name without prefix: float32, bfloat16, float16."""
    shape: tuple[int, ...]
    """[num_embeds, width]; width = hidden x (1 + deep-stack layers) (05 §3)."""
    data: bytes
    """C-order, little-endian."""


class EncoderCache(Protocol):
    """Embeddings of items, in one namespace (weights and processor settings).

    `mm_hash` is an item's name on the wire; `key` its name inside, where that is another one, and
    `alias` where what callers sent is found by its hash alone (`schemas.identity`).
    """

    async def put(
        self,
        mm_hash: str,
        embedding: Embedding,
        *,
        key: str = "",
        alias: str = "",
        replace: bool = False,
    ) -> dict[str, Any]:
        """Publish; return the descriptor only once the entry can be read.

        A whole entry that is there already stays, unless `replace` says that it proved unusable.
        With an `alias`, the entry is also what is found there from now on.
        """

    async def get(
        self,
        mm_hash: str,
        *,
        rows: int,
        width: int,
        dtypes: Sequence[str],
        checksum: object = None,
        key: str = "",
        alias: str = "",
    ) -> Embedding | None:
        """The verified entry, or None where it is absent or unusable.

        `checksum` is the descriptor's (blake3 of the data, hex), where it carries one. With an
        `alias`, what is there will do where there is no entry under the key.
        """

    async def contains(self, mm_hash: str, *, key: str = "") -> bool:
        """Whether a complete entry is there, of whatever shape."""

    async def sweep(self, *, max_age_s: float) -> int:
        """Remove what nobody touched for so long; return how many entries."""
