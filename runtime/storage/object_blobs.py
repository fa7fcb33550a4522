"""The blob store in a bucket, by obstore. Nothing here knows what the bytes mean."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError

from runtime.errors import SettingsError, StoreAway, StoreError, StoreRefused
from runtime.storage.digest import digest_off_loop
from runtime.storage.keys import REFRESH_AFTER_S, STORE_ID, SWEPT, blob_key, named_key
from schemas.envelope import BlobRef

_RETRY: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
_CLIENT: Any = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}


def open_bucket(url: str) -> "ObstoreBlobs":
    """SettingsError where the URL names none."""
    try:
        store = obstore.store.from_url(url, client_options=_CLIENT, retry_config=_RETRY)
    except (BaseError, ValueError, OSError) as error:
        raise SettingsError(f"--store {url!r}: {_first_line(error)}") from error
    return ObstoreBlobs(store)


class ObstoreBlobs:
    """One store, safe to share between tasks. Nothing to close: clients end with the process."""

    is_shared = True

    def __init__(self, store: Any, *, refresh_after_s: float = REFRESH_AFTER_S) -> None:
        self._store = store
        self._refresh_after = timedelta(seconds=refresh_after_s)

    async def put(self, data: bytes, *, digest: str | None = None) -> BlobRef:
        ref = BlobRef(digest=digest or await digest_off_loop(data), size=len(data))
        meta = await self._head(blob_key(ref.digest))
        if meta is None or meta["size"] != ref.size or self._is_old(meta):
            with _translated():
                # Written aside and renamed by the store: readers see all of it or nothing.
                await obstore.put_async(self._store, blob_key(ref.digest), data)
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        data = await self._read(blob_key(ref.digest))
        if data is None:
            raise StoreError(f"blob {ref.digest} is missing")
        if len(data) != ref.size or await digest_off_loop(data) != ref.digest:
            raise StoreError(f"blob {ref.digest} is not what was written")
        return data

    async def refresh(self, ref: BlobRef) -> bool:
        meta = await self._head(blob_key(ref.digest))
        if meta is None or meta["size"] != ref.size:
            return False
        if self._is_old(meta):
            await self.put(await self.get(ref))
        return True

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            with _translated():
                await obstore.put_async(self._store, named_key(name), data, mode="create")
        except _Exists:
            return False
        return True

    async def put_named(self, name: str, data: bytes) -> None:
        with _translated():
            await obstore.put_async(self._store, named_key(name), data)

    async def get_named(self, name: str) -> bytes | None:
        return await self._read(named_key(name))

    async def sweep(self, *, max_age_s: float) -> int:
        before = datetime.now(UTC) - timedelta(seconds=max_age_s)
        count = 0
        async for key in self._older(before):
            # Looked at again: a repeat may have refreshed it since the listing.
            meta = await self._head(key)
            if meta is not None and meta["last_modified"] < before:
                with _translated():
                    await obstore.delete_async(self._store, key)
                count += 1
        return count

    async def _older(self, before: datetime) -> AsyncIterator[str]:
        for prefix in SWEPT:
            with _translated():
                async for page in obstore.list(self._store, prefix):
                    for meta in page:
                        if meta["last_modified"] < before and meta["path"] != named_key(STORE_ID):
                            yield meta["path"]

    async def _head(self, key: str) -> Any:
        try:
            with _translated():
                return await obstore.head_async(self._store, key)
        except _Missing:
            return None

    async def _read(self, key: str) -> bytes | None:
        try:
            with _translated():
                result = await obstore.get_async(self._store, key)
                return bytes(await result.bytes_async())
        except _Missing:
            return None

    def _is_old(self, meta: Any) -> bool:
        return bool(datetime.now(UTC) - meta["last_modified"] > self._refresh_after)


class _Missing(StoreError):
    """Nothing under that key."""


class _Exists(StoreError):
    """The key is taken."""


@contextmanager
def _translated() -> Iterator[None]:
    """The one place that knows obstore's exceptions."""
    try:
        yield
    except FileNotFoundError as error:
        raise _Missing("no such object") from error
    except AlreadyExistsError as error:
        raise _Exists("the object exists") from error
    except (InvalidPathError, ValueError) as error:
        raise StoreRefused(_first_line(error)) from error
    except (BaseError, OSError) as error:
        raise StoreAway(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__
