"""The encoder cache in a directory, in vLLM's flat layout.

One tensor `ec_cache` in `<root>/<mm_hash>/encoder_cache.safetensors`. An entry is
announced once it can be read, and verified before it is used; a damaged or half-written one counts
as absent. Knows no model.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from runtime.errors import SettingsError, StoreError
from runtime.storage import Embedding, EncoderCache
from runtime.storage.digest import digest_of
from runtime.storage.faults import store_error
from runtime.storage.files import why_unusable, write_whole
from runtime.storage.names import require_path, require_plain
from runtime.storage.safetensors import PREFIX_BYTES, Layout, head_of, header_length, layout_of

FILE_NAME = "encoder_cache.safetensors"
REFRESH_AFTER_S = 60.0


def open_encoder_cache(url: str, namespace: str = "") -> EncoderCache:
    """The cache a URL names; a namespace is a sub-root. SettingsError where impossible."""
    parts = urlsplit(url)
    if parts.scheme != "directory" or parts.netloc or not parts.path.startswith("/"):
        raise SettingsError(f"--ec {url!r}: use directory:///path")
    root = Path(unquote(parts.path))
    try:
        root = root / require_path(namespace) if namespace else root
    except StoreError as error:
        raise SettingsError(f"--ec {url!r}: {error}") from error
    if problem := why_unusable(str(root)):
        raise SettingsError(f"--ec {url!r} cannot be used: {problem}")
    return DirectoryCache(root)


class DirectoryCache:
    """Entries under one root. Any number of processes may share it; all file work is off the loop.

    `fsync` is off: after a power loss a torn entry fails its checks and is made again.
    """

    def __init__(self, root: Path, *, fsync: bool = False) -> None:
        self._root = root
        self._fsync = fsync

    async def put(
        self, mm_hash: str, embedding: Embedding, *, replace: bool = False
    ) -> dict[str, Any]:
        return await asyncio.to_thread(self._put, self._path(mm_hash), embedding, replace)

    async def get(
        self,
        mm_hash: str,
        *,
        rows: int,
        width: int,
        dtypes: Sequence[str],
        checksum: str | None = None,
    ) -> Embedding | None:
        path = self._path(mm_hash)
        return await asyncio.to_thread(_try_read, path, (rows, width), dtypes, checksum)

    async def contains(self, mm_hash: str) -> bool:
        return await asyncio.to_thread(_try_layout, self._path(mm_hash)) is not None

    async def sweep(self, *, max_age_s: float) -> int:
        """Remove entries, and what crashed writers left, that nobody touched for so long."""
        return await asyncio.to_thread(_sweep, self._root, time.time() - max_age_s)

    def _path(self, mm_hash: str) -> Path:
        return self._root / require_plain(mm_hash) / FILE_NAME

    def _put(self, path: Path, embedding: Embedding, replace: bool) -> dict[str, Any]:
        checksum = digest_of(embedding.data)
        head = head_of(embedding, checksum)
        # What is there and whole stays: another worker may just have announced its checksum.
        stored = None if replace else _try_read(path, embedding.shape, (embedding.dtype,))
        if stored is not None:
            return _descriptor(stored, digest_of(stored.data))
        _write(path, (head, embedding.data), fsync=self._fsync)
        if _try_layout(path) is None:
            raise StoreError(f"{path.parent.name} cannot be read back")
        return _descriptor(embedding, checksum)


def _descriptor(embedding: Embedding, checksum: str) -> dict[str, Any]:
    return {
        "shape": list(embedding.shape),
        "dtype": embedding.dtype,
        "size_bytes": len(embedding.data),
        "checksum": checksum,
    }


def _write(path: Path, chunks: Sequence[bytes], *, fsync: bool) -> None:
    try:
        write_whole(str(path), chunks, fsync=fsync)
    except OSError as error:
        raise store_error(error, f"cannot write {path.parent.name}") from error


def _try_read(
    path: Path, shape: tuple[int, ...], dtypes: Sequence[str], checksum: str | None = None
) -> Embedding | None:
    """The entry, if it is of that shape and one of the dtypes, and what its checksums say."""
    try:
        with path.open("rb") as file:
            layout = _read_layout(file)
            if layout.shape != shape or layout.dtype not in dtypes:
                return None
            data = file.read(layout.num_bytes)
    except FileNotFoundError:
        return None
    except StoreError:
        return None
    except OSError as error:
        raise store_error(error, f"cannot read {path.parent.name}") from error
    expected = {known for known in (layout.checksum, checksum) if known is not None}
    if len(data) != layout.num_bytes or (expected and expected != {digest_of(data)}):
        return None
    _refresh(path)
    return Embedding(layout.dtype, shape, data)


def _try_layout(path: Path) -> Layout | None:
    try:
        with path.open("rb") as file:
            return _read_layout(file)
    except (FileNotFoundError, StoreError):
        return None
    except OSError as error:
        raise store_error(error, f"cannot read {path.parent.name}") from error


def _read_layout(file: BinaryIO) -> Layout:
    length = header_length(file.read(PREFIX_BYTES))
    header = file.read(length)
    return layout_of(header, os.fstat(file.fileno()).st_size - PREFIX_BYTES - length)


def _refresh(path: Path) -> None:
    """Reuse makes an entry young again; at most once a minute, and never an error."""
    try:
        if time.time() - path.stat().st_mtime > REFRESH_AFTER_S:
            os.utime(path)
    except OSError:
        return


def _sweep(root: Path, before: float) -> int:
    count = 0
    for path in _files(root):
        try:
            if path.stat().st_mtime < before:
                path.unlink()
                count += path.name == FILE_NAME
                path.parent.rmdir()
        except OSError:  # gone already, or the directory holds something newer
            continue
    return count


def _files(root: Path) -> Iterator[Path]:
    for directory in root.iterdir():
        if directory.is_dir():
            yield from (p for p in directory.iterdir() if FILE_NAME in p.name and p.is_file())
