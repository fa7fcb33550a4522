"""Gets a medium's bytes from where the caller says they are: data, http(s) and file URLs (01 §6).

A caller never makes us connect to an address that is not public, nor read a file outside the folder
the operator opened. Decodes nothing.
"""

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pybase64

from runtime.errors import SettingsError
from runtime.settings import RenderSettings
from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models.limits import Budget, MediaLimits
from workers.render.media import MediaPart

if TYPE_CHECKING:
    from workers.models.http_fetch import HttpFetcher


def split_data_url(url: str) -> tuple[str, str]:
    """Media type and base64 text of a `data:` URL. Raise ApiError where it is malformed."""
    spec, comma, payload = url[len("data:") :].partition(",")
    if not comma:
        raise bad_request(f"Invalid data URL {url[:32]!r}: missing ',' separator.")
    kind, semicolon, encoding = spec.rpartition(";")
    if not semicolon or encoding != "base64":
        raise bad_request("Only base64 data URLs are supported for now.")
    return kind.partition(";")[0], payload


def decode_base64(text: str) -> bytes:
    """Strictly. Raise ApiError for anything that is not base64."""
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise bad_request(str(error)) from error


class Fetcher:
    """Fetches what is not in the URL itself. One per process; `close` it."""

    def __init__(self, render: RenderSettings, limits: MediaLimits) -> None:
        """Raise SettingsError where the local media path is no folder."""
        self._limits = limits
        self._domains = frozenset(domain.lower() for domain in render.allowed_media_domains)
        self._root = _local_root(render.allowed_local_media_path)
        self._http: HttpFetcher | None = None

    async def fetch(self, part: MediaPart, budget: Budget, deadline: float) -> bytes:
        """`deadline`: of all the request's downloads, by time.monotonic(). Raise ApiError."""
        scheme = part.source[:8].lower().partition(":")[0]
        if scheme in ("http", "https"):
            return await self._over_http().fetch(part, budget, deadline)
        if scheme == "file":
            return await asyncio.to_thread(self._read_file, part.source)
        raise bad_request("The URL must be either a HTTP, data or file URL.")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _over_http(self) -> "HttpFetcher":
        if self._http is None:  # a session belongs to the running event loop
            from workers.models.http_fetch import HttpFetcher

            self._http = HttpFetcher(self._domains, self._limits)
        return self._http

    def _read_file(self, url: str) -> bytes:
        if self._root is None:
            raise bad_request("Cannot load local files without `--allowed-local-media-path`.")
        parts = urlsplit(url)
        asked = Path(url2pathname(parts.netloc + parts.path))
        try:
            path = asked.resolve(strict=True)
            if self._root not in path.parents:
                raise _outside(asked, self._root)
            return _read_regular(path, self._limits.max_download_bytes)
        except (OSError, ValueError, RuntimeError) as error:
            if self._root not in asked.resolve().parents:
                raise _outside(asked, self._root) from error
            reason = error.strerror if isinstance(error, OSError) else "not a usable path"
            raise bad_request(f"Cannot read the local media file: {reason}") from error


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


def _read_regular(path: Path, limit: int) -> bytes:
    """A link that took the file's place meanwhile is not followed, a pipe not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("not a regular file")
        if 0 < limit < facts.st_size:
            raise bad_request(f"The local media file has {facts.st_size} bytes, more than {limit}.")
        return file.read()
