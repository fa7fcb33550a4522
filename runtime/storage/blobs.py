"""Opens blob stores by URL: `file:///path`, `s3://bucket/prefix` and `memory:///`."""

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from runtime.errors import SettingsError
from runtime.storage import BlobStore
from runtime.storage.file_blobs import FileBlobs
from runtime.storage.files import why_unusable
from runtime.storage.keys import SWEPT
from runtime.storage.memory_blobs import MAX_BYTES, MemoryBlobs


def open_blobs(url: str, *, max_memory_bytes: int = MAX_BYTES) -> BlobStore:
    """The store a URL names; one in memory is bounded. SettingsError where that is impossible."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return MemoryBlobs(max_memory_bytes)
    if parts.scheme == "file":
        return FileBlobs(_folder(url, parts))
    if parts.scheme == "s3":
        # Imported late: what speaks to buckets starts threads of its own.
        from runtime.storage.object_blobs import open_bucket

        return open_bucket(url)
    raise SettingsError(f"--store {url!r}: use file:///path, s3://bucket/prefix or memory:///")


def _folder(url: str, parts: SplitResult) -> Path:
    if parts.netloc or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise SettingsError(f"--store {url!r}: use file:///path")
    folder = Path(unquote(parts.path))
    for each in (folder, *(folder / name for name in SWEPT)):
        if problem := why_unusable(str(each)):
            raise SettingsError(f"--store {url!r} cannot be used: {problem}")
    return folder
