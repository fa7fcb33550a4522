"""The encoder cache in a directory, in vLLM's layout.

One tensor `ec_cache` in `<root>/<name>/encoder_cache.safetensors`. An entry is
announced once it can be read, and verified before it is used; a damaged or half-written one counts
as absent. Knows no model.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from runtime.errors import SettingsError, StoreError
from runtime.storage import Embedding, EncoderCache
from runtime.storage.digest import digest_of
from runtime.storage.faults import store_error
from runtime.storage.files import clear_way, link_whole, open_regular, why_unusable, write_whole
from runtime.storage.names import is_plain, require_path, require_plain
from runtime.storage.safetensors import PREFIX_BYTES, Layout, head_of, header_length, layout_of
from schemas.identity import DERIVED

FILE_NAME = "encoder_cache.safetensors"
REFRESH_AFTER_S = 60.0


def open_encoder_cache(url: str, namespace: str = "", *, is_flat: bool = False) -> EncoderCache:
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
    return DirectoryCache(root, is_flat=is_flat)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a reader takes."""

    shape: tuple[int, ...]
    dtypes: Sequence[str]
    checksum: object = None
    names: Mapping[str, str] = field(default_factory=dict)
    """Of these, one has to be the file's own, unless its writer noted none of them."""

    def fits(self, layout: Layout) -> bool:
        is_shape = layout.shape == self.shape and layout.dtype in self.dtypes
        return is_shape and _is_named(layout, self.names)


class DirectoryCache:
    """Entries under one root. Any number of processes may share it; all file work is off the loop.

    `fsync` is off: after a power loss a torn entry fails its checks and is made again.

    `is_flat` is vLLM's own layout: there the hash is the folder, whoever chose it, so a file notes
    its key and its alias, and is no entry for others. What vLLM wrote notes nothing: it belongs to
    the hash itself.
    """

    def __init__(self, root: Path, *, fsync: bool = False, is_flat: bool = False) -> None:
        self._root = root
        self._fsync = fsync
        self._is_flat = is_flat

    async def put(
        self,
        mm_hash: str,
        embedding: Embedding,
        *,
        key: str = "",
        alias: str = "",
        replace: bool = False,
    ) -> dict[str, Any]:
        path = self._path(mm_hash, key)
        names = self._names(mm_hash, key, alias)
        descriptor = await asyncio.to_thread(self._put, path, embedding, names, replace)
        if alias and not self._is_flat:
            await asyncio.to_thread(_link, path, self._root / require_plain(alias) / FILE_NAME)
        return descriptor

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
        names = self._names(mm_hash, key, alias)
        wanted = _Wanted((rows, width), dtypes, checksum, names)
        found = await asyncio.to_thread(_try_read, self._path(mm_hash, key), wanted)
        if found is not None or not alias or self._is_flat:
            return found
        return await asyncio.to_thread(_try_read, self._path(alias, ""), wanted)

    async def contains(self, mm_hash: str, *, key: str = "") -> bool:
        path, names = self._path(mm_hash, key), self._names(mm_hash, key, "")
        layout = await asyncio.to_thread(_try_layout, path)
        return layout is not None and _is_named(layout, names)

    async def sweep(self, *, max_age_s: float) -> int:
        """Remove entries, and what crashed writers left, that nobody touched for so long."""
        return await asyncio.to_thread(_sweep, self._root, time.time() - max_age_s)

    def _path(self, mm_hash: str, key: str) -> Path:
        name = mm_hash if self._is_flat and is_plain(mm_hash) else key or mm_hash
        return self._root / require_plain(name) / FILE_NAME

    def _names(self, mm_hash: str, key: str, alias: str) -> dict[str, str]:
        """What a file in a place that others may write to has to note."""
        if not self._is_flat:
            return {}
        return {"key": key or mm_hash, **({"alias": alias} if alias else {})}

    def _put(
        self, path: Path, embedding: Embedding, names: Mapping[str, str], replace: bool
    ) -> dict[str, Any]:
        checksum = digest_of(embedding.data)
        head = head_of(embedding, {**names, "checksum": checksum})
        # What is there and whole stays: another worker may just have announced its checksum.
        wanted = _Wanted(embedding.shape, (embedding.dtype,), names=_key_of(names))
        stored = None if replace else _try_read(path, wanted)
        if stored is not None:
            return _descriptor(stored, digest_of(stored.data))
        _write(path, (head, embedding.data), fsync=self._fsync)
        if _try_layout(path) is None:
            raise StoreError(f"{path.parent.name} cannot be read back")
        return _descriptor(embedding, checksum)


def _key_of(names: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in names.items() if name == "key"}


def _is_named(layout: Layout, names: Mapping[str, str]) -> bool:
    if not names:
        return True
    noted = {name: layout.names[name] for name in ("key", "alias") if name in layout.names}
    if not noted:  # vLLM's: the hash's own
        return "alias" in names or not names["key"].startswith(DERIVED)
    return any(noted.get(name) == value for name, value in names.items())


def _descriptor(embedding: Embedding, checksum: str) -> dict[str, Any]:
    return {
        "shape": list(embedding.shape),
        "dtype": embedding.dtype,
        "size_bytes": len(embedding.data),
        "checksum": checksum,
    }


def _write(path: Path, chunks: Sequence[bytes], *, fsync: bool) -> None:
    try:
        try:
            write_whole(str(path), chunks, fsync=fsync)
        except OSError:
            if not clear_way(str(path)):
                raise
            write_whole(str(path), chunks, fsync=fsync)
    except OSError as error:
        raise store_error(error, f"cannot write {path.parent.name}") from error


def _link(path: Path, alias: Path) -> None:
    try:
        try:
            link_whole(str(path), str(alias))
        except OSError:
            clear_way(str(alias))
            write_whole(str(alias), (path.read_bytes(),))  # no links there, or swept just now
    except OSError as error:
        raise store_error(error, f"cannot write {alias.parent.name}") from error


def _try_read(path: Path, wanted: _Wanted) -> Embedding | None:
    """The entry, if it is what is wanted and what its checksums say."""
    try:
        file = open_regular(str(path))
        if file is None:
            return None
        with file:
            layout = _read_layout(file)
            if not wanted.fits(layout):
                return None
            data = file.read(layout.num_bytes)
    except StoreError:
        return None
    except OSError as error:
        raise store_error(error, f"cannot read {path.parent.name}") from error
    expected = [known for known in (layout.checksum, wanted.checksum) if known is not None]
    if len(data) != layout.num_bytes or not _is_what(data, expected):
        return None
    _refresh(path)
    return Embedding(layout.dtype, wanted.shape, data)


def _is_what(data: bytes, checksums: Sequence[object]) -> bool:
    """A descriptor's checksum may be anything that a caller wrote."""
    if not checksums:
        return True
    digest = digest_of(data)
    return all(checksum == digest for checksum in checksums)


def _try_layout(path: Path) -> Layout | None:
    try:
        file = open_regular(str(path))
        if file is None:
            return None
        with file:
            return _read_layout(file)
    except StoreError:
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
