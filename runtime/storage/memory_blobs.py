"""The blob store of a fleet in one process: references to the very bytes, no copies.

Nothing is verified on read: the bytes are the object that was hashed. Not shared with anybody.
"""

import time
from collections.abc import Callable

from runtime.errors import StoreError
from runtime.storage.digest import digest_off_loop
from runtime.storage.names import require_path
from schemas.envelope import BlobRef


class MemoryBlobs:
    """Lives as long as its owner. Single dict operations only, so threads may share it."""

    is_shared = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blobs: dict[str, tuple[bytes, float]] = {}
        self._named: dict[str, tuple[bytes, float]] = {}

    async def put(self, data: bytes) -> BlobRef:
        data = bytes(data)
        digest = await digest_off_loop(data)
        kept = self._blobs.get(digest, (data, 0.0))[0]
        self._blobs[digest] = (kept, self._clock())
        return BlobRef(digest=digest, size=len(data))

    async def get(self, ref: BlobRef) -> bytes:
        try:
            data = self._blobs[ref.digest][0]
        except KeyError:
            raise StoreError(f"blob {ref.digest} is missing") from None
        if len(data) != ref.size:
            raise StoreError(f"blob {ref.digest} is not what was written")
        return data

    async def refresh(self, ref: BlobRef) -> bool:
        entry = self._blobs.get(ref.digest)
        if entry is None:
            return False
        self._blobs[ref.digest] = (entry[0], self._clock())
        return True

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        entry = (bytes(data), self._clock())
        return self._named.setdefault(require_path(name), entry) is entry

    async def put_named(self, name: str, data: bytes) -> None:
        self._named[require_path(name)] = (bytes(data), self._clock())

    async def get_named(self, name: str) -> bytes | None:
        entry = self._named.get(require_path(name))
        return entry[0] if entry else None

    async def sweep(self, *, max_age_s: float) -> int:
        before = self._clock() - max_age_s
        return _forget(self._blobs, before) + _forget(self._named, before)


def _forget(entries: dict[str, tuple[bytes, float]], before: float) -> int:
    old = [name for name, (_, written) in list(entries.items()) if written < before]
    for name in old:
        entries.pop(name, None)
    return len(old)
