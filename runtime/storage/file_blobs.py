"""The blob store in a directory, for every process that sees it.

What is small is read and written where it is asked for: that takes less time than the way to a
thread and back. Nothing here knows what the bytes mean.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from runtime.errors import StoreAway, StoreError
from runtime.storage.digest import digest_of
from runtime.storage.faults import store_error
from runtime.storage.files import is_aside, read_whole, write_first, write_whole
from runtime.storage.keys import REFRESH_AFTER_S, STORE_ID, SWEPT, blob_key, named_key
from schemas.envelope import BlobRef

_T = TypeVar("_T")
_INLINE_BYTES = 256 * 1024  # read and hashed in 0.1 ms


class FileBlobs:
    """Safe to share between tasks and between processes. Nothing to close."""

    is_shared = True

    def __init__(self, root: Path, *, refresh_after_s: float = REFRESH_AFTER_S) -> None:
        self._root = str(root)
        self._refresh_after_s = refresh_after_s

    async def put(self, data: bytes, *, digest: str | None = None) -> BlobRef:
        return await _run(len(data), lambda: self._put(data, digest))

    async def get(self, ref: BlobRef) -> bytes:
        return await _run(ref.size, lambda: self._get(ref))

    async def refresh(self, ref: BlobRef) -> bool:
        path = self._path(blob_key(ref.digest))
        with _translated():
            status = _status(path)
            if status is None or status.st_size != ref.size:
                return False
            return not self._is_old(status) or _touch(path)

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(named_key(name))
        with _translated():
            self._require_root()
            return await _run(len(data), lambda: write_first(path, (data,)))

    async def put_named(self, name: str, data: bytes) -> None:
        path = self._path(named_key(name))
        with _translated():
            self._require_root()
            await _run(len(data), lambda: write_whole(path, (data,)))

    async def get_named(self, name: str) -> bytes | None:
        path = self._path(named_key(name))
        with _translated():
            if (status := _status(path)) is None:
                self._require_root()
                return None
            return await _run(status.st_size, lambda: read_whole(path))

    async def sweep(self, *, max_age_s: float) -> int:
        with _translated():
            return await asyncio.to_thread(self._sweep, time.time() - max_age_s)

    def _require_root(self) -> None:
        """A folder that is gone is away: what it held is not missing, and it is not made anew."""
        if not os.path.isdir(self._root):
            raise StoreAway(f"there is no folder {self._root}")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _put(self, data: bytes, digest: str | None) -> BlobRef:
        ref = BlobRef(digest=digest or digest_of(data), size=len(data))
        path = self._path(blob_key(ref.digest))
        with _translated():
            status = _status(path)
            if status is None or status.st_size != ref.size or self._is_old(status):
                self._require_root()
                write_whole(path, (data,))
        return ref

    def _get(self, ref: BlobRef) -> bytes:
        with _translated():
            data = read_whole(self._path(blob_key(ref.digest)))
        if data is None:
            self._require_root()
            raise StoreError(f"blob {ref.digest} is missing")
        if len(data) != ref.size or digest_of(data) != ref.digest:
            raise StoreError(f"blob {ref.digest} is not what was written")
        return data

    def _is_old(self, status: os.stat_result) -> bool:
        return time.time() - status.st_mtime > self._refresh_after_s

    def _sweep(self, before: float) -> int:
        kept = self._path(named_key(STORE_ID))
        count = 0
        for path in self._files():
            if path != kept and _remove_older(path, before):
                count += not is_aside(os.path.basename(path))
        return count

    def _files(self) -> Iterator[str]:
        for prefix in SWEPT:
            for folder, _, names in os.walk(self._path(prefix)):
                yield from (f"{folder}/{name}" for name in names)


async def _run(size: int, work: Callable[[], _T]) -> _T:
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _touch(path: str) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:  # swept just now
        return False
    return True


def _remove_older(path: str, before: float) -> bool:
    # Looked at only now: a repeat may have refreshed it since the listing.
    status = _status(path)
    if status is None or status.st_mtime >= before:
        return False
    try:
        os.unlink(path)
    except FileNotFoundError:  # by another sweep
        return False
    return True


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise store_error(error, str(error.filename)) from error
