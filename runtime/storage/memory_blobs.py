"""The blob store of a fleet in one process: references to the very bytes, no copies.

Bounded: above `max_bytes` the objects that were not used for longest go first, but for large ones
that somebody holds (their memory is in use, forgetting them would free nothing) or has just named
to somebody else. Nothing is verified on read, because the bytes are the object that was hashed.
Not shared with anybody.
"""

import sys
import time
from collections import OrderedDict
from collections.abc import Callable

from runtime.errors import StoreError
from runtime.storage.digest import digest_off_loop
from runtime.storage.names import require_path
from schemas.envelope import BlobRef

MAX_BYTES = 1024 * 1024 * 1024
# What an entry costs beside its bytes, so that many small ones are bounded too.
_ENTRY_BYTES = 512
_LARGE_BYTES = 64 * 1024
# From the end of a stage until the next one, or the answer, has taken what was named to it.
_ON_THE_WAY_S = 0.5


class MemoryBlobs:
    """Lives as long as its owner; used on one event loop."""

    is_shared = False

    def __init__(
        self, max_bytes: int = MAX_BYTES, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self.held_bytes = 0

    async def put(self, data: bytes, *, digest: str | None = None) -> BlobRef:
        data = bytes(data)
        digest = digest or await digest_off_loop(data)
        key = f"blobs/{digest}"
        self._write(key, self._entries.get(key, (data, 0.0))[0])
        return BlobRef(digest=digest, size=len(data))

    async def get(self, ref: BlobRef) -> bytes:
        data = self._read(f"blobs/{ref.digest}")
        if data is None:
            raise StoreError(f"blob {ref.digest} is missing")
        if len(data) != ref.size:
            raise StoreError(f"blob {ref.digest} is not what was written")
        return data

    async def refresh(self, ref: BlobRef) -> bool:
        data = self._read(f"blobs/{ref.digest}")
        if data is None:
            return False
        self._write(f"blobs/{ref.digest}", data)
        return True

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        key = _named(name)
        if key in self._entries:
            return False
        self._write(key, bytes(data))
        return True

    async def put_named(self, name: str, data: bytes) -> None:
        self._write(_named(name), bytes(data))

    async def get_named(self, name: str) -> bytes | None:
        return self._read(_named(name))

    async def sweep(self, *, max_age_s: float) -> int:
        before = self._clock() - max_age_s
        old = [key for key, (_, written) in self._entries.items() if written < before]
        for key in old:
            self._forget(key)
        return len(old)

    def _read(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def _write(self, key: str, data: bytes) -> None:
        if key in self._entries:
            self._forget(key)
        self._entries[key] = data, self._clock()
        self.held_bytes += _cost(data)
        for old in self._surplus(self.held_bytes - self._max_bytes, but_for=key):
            self._forget(old)

    def _surplus(self, too_much: int, *, but_for: str) -> list[str]:
        """What to forget to be so many bytes smaller, as far as that is possible."""
        found: list[str] = []
        settled = self._clock() - _ON_THE_WAY_S
        for key, entry in self._entries.items():
            if too_much <= 0:
                break
            if key != but_for and not _is_needed(entry, settled):
                found.append(key)
                too_much -= _cost(entry[0])
        return found

    def _forget(self, key: str) -> None:
        data, _ = self._entries.pop(key)
        self.held_bytes -= _cost(data)


def _is_needed(entry: tuple[bytes, float], settled: float) -> bool:
    """Whether somebody besides us (entry and argument) refers to large bytes, or soon will."""
    is_in_use = sys.getrefcount(entry[0]) > 2 or entry[1] > settled
    return is_in_use and len(entry[0]) >= _LARGE_BYTES


def _cost(data: bytes) -> int:
    return len(data) + _ENTRY_BYTES


def _named(name: str) -> str:
    return f"named/{require_path(name)}"
