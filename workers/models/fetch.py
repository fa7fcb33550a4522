"""Gets a medium's bytes from where the caller says they are: http(s) and file URLs.

A caller never makes us connect to an address that is not public, nor read a file outside the folder
the operator opened. Decodes nothing.
"""

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from runtime.errors import SettingsError
from runtime.settings import RenderSettings
from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models.downloads import Downloads
from workers.models.limits import FREE_BYTES, MediaLimits
from workers.render.media import MediaPart

if TYPE_CHECKING:
    from workers.models.http_fetch import HttpFetcher

_FILE_THREADS = 4


class Fetcher:
    """Fetches what is not in the URL itself. One per process; `close` it."""

    def __init__(self, render: RenderSettings, limits: MediaLimits) -> None:
        """Raise SettingsError where the local media path is no folder."""
        self._limits = limits
        self._domains = frozenset(domain.lower() for domain in render.allowed_media_domains)
        self._root = _local_root(render.allowed_local_media_path)
        self._files = ThreadPoolExecutor(_FILE_THREADS, "local files")
        self._http: HttpFetcher | None = None

    async def fetch(self, part: MediaPart, downloads: Downloads) -> bytes:
        """Within the request's time and bytes, and a share of the memory for files. ApiError."""
        scheme = part.source[:8].lower().partition(":")[0]
        if scheme in ("http", "https"):
            return await self._over_http().fetch(part, downloads)
        if scheme == "file":
            return await self._read_local(part.source, downloads)
        raise bad_request("The URL must be either a HTTP, data or file URL.")

    async def close(self) -> None:
        self._files.shutdown(wait=False, cancel_futures=True)
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _over_http(self) -> "HttpFetcher":
        if self._http is None:  # a session belongs to the running event loop
            from workers.models.http_fetch import HttpFetcher

            self._http = HttpFetcher(self._domains, self._limits)
        return self._http

    async def _read_local(self, url: str, downloads: Downloads) -> bytes:
        """In threads of its own: a folder may be on a network that is slow."""
        if self._root is None:
            raise bad_request("Cannot load local files without `--allowed-local-media-path`.")
        loop = asyncio.get_running_loop()
        path, size = await loop.run_in_executor(self._files, self._found, url, self._root)
        downloads.budget.charge(size)
        await downloads.memory.keep(size - FREE_BYTES)
        return await loop.run_in_executor(self._files, _read, path, size)

    def _found(self, url: str, root: Path) -> tuple[Path, int]:
        """Where a URL leads, all links followed, and how large it is."""
        try:
            parts = urlsplit(url)
            asked = Path(url2pathname(parts.netloc + parts.path))
        except ValueError as error:
            raise bad_request(f"Failed to parse the media URL: {error}") from error
        try:
            path = asked.resolve(strict=True)
            if root not in path.parents:
                raise _outside(asked, root)
            return path, _size_of(path, self._limits.max_download_bytes)
        except (OSError, ValueError, RuntimeError) as error:
            if not _is_inside(asked, root):
                raise _outside(asked, root) from error
            raise _unreadable(error) from error


def _is_inside(asked: Path, root: Path) -> bool:
    """Of a path that leads nowhere, as far as it can be followed."""
    try:
        return root in asked.resolve().parents
    except (OSError, ValueError, RuntimeError):
        return root in asked.parents


def _unreadable(error: Exception) -> ApiError:
    reason = (error.strerror if isinstance(error, OSError) else None) or "not a usable path"
    return bad_request(f"Cannot read the local media file: {reason}")


def _outside(asked: Path, root: Path) -> ApiError:
    return bad_request(
        f"The file path {asked} must be a subpath of `--allowed-local-media-path {root}`."
    )


def _local_root(setting: str | None) -> Path | None:
    if not setting:
        return None
    root = Path(setting).expanduser().resolve()
    if not root.is_dir():
        raise SettingsError(f"--allowed-local-media-path {setting!r} is not an existing directory")
    return root


def _size_of(path: Path, limit: int) -> int:
    """Raise ValueError for what is no file: a device may do things when it is opened."""
    facts = path.lstat()
    _require_regular(facts)
    if 0 < limit < facts.st_size:
        raise bad_request(f"The local media file has {facts.st_size} bytes, more than {limit}.")
    return facts.st_size


def _read(path: Path, size: int) -> bytes:
    """A link that took the file's place meanwhile is not followed, a pipe not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            _require_regular(os.fstat(file.fileno()))
            return file.read(size)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from error


def _require_regular(facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("not a regular file")
