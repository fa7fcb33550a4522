"""Downloads media over HTTP without being led to places that are not the caller's business.

The address is checked where the socket is made, so name tricks, redirects and changing DNS answers
all end at the same gate. Decodes nothing.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from schemas.errors import ApiError, FailureCode
from schemas.refusals import bad_request
from workers.models.addresses import is_public
from workers.models.limits import Budget, MediaLimits
from workers.render.media import MediaPart

_CHUNK = 64 * 1024
_MAX_REDIRECTS = 10
_BACKOFF = 4
"""Each retry waits, and may take, four times as long as the one before."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"User-Agent": "tokenfleet", "Accept": "*/*", "Accept-Encoding": "identity"}

# Addresses refused during one download; connection attempts run in tasks of their own.
_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)


class HttpFetcher:
    """One connection pool. Belongs to the event loop it is first used on; `close` it."""

    def __init__(self, domains: frozenset[str], limits: MediaLimits) -> None:
        """`domains`: the only hosts allowed, private addresses included. Empty: any public one."""
        self._domains = domains
        self._limits = limits
        factory = None if domains else _guarded_socket
        connector = aiohttp.TCPConnector(limit=64, ttl_dns_cache=10, socket_factory=factory)
        # trust_env stays off: a proxy would connect in our place, unchecked.
        self._session = aiohttp.ClientSession(
            connector=connector, headers=_HEADERS, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        await self._session.close()

    async def fetch(self, part: MediaPart, budget: Budget, deadline: float) -> bytes:
        url = self._checked(part.source, part)
        first = self._timeout(part.modality)
        for attempt in range(max(self._limits.max_fetch_attempts, 1)):
            if attempt:
                await asyncio.sleep(
                    min(self._limits.retry_delay_s * _BACKOFF ** (attempt - 1), _left(deadline))
                )
            try:
                timeout = min(first * _BACKOFF**attempt, _left(deadline))
                return await self._attempt(url, part, budget, timeout)
            except _Retriable as error:
                failure = error.answer
                if _left(deadline) <= 0:
                    break
        raise failure

    def _timeout(self, modality: str) -> float:
        limits = self._limits
        return limits.video_fetch_timeout_s if modality == "video" else limits.image_fetch_timeout_s

    async def _attempt(self, url: URL, part: MediaPart, budget: Budget, timeout: float) -> bytes:
        refused: list[str] = []
        token = _refused.set(refused)
        try:
            with _translated(part, refused):
                async with asyncio.timeout(timeout):
                    return await self._follow(url, part, budget)
        finally:
            _refused.reset(token)

    async def _follow(self, url: URL, part: MediaPart, budget: Budget) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    _require_success(response.status, part)
                    return await self._body(response, part, budget)
                target = response.headers.get("Location", "")
            if not self._limits.allow_redirects:
                raise _unprocessable(part, "the server redirects, and redirects are disabled")
            url = self._checked(str(url.join(URL(target))), part)
        raise _unprocessable(part, f"more than {_MAX_REDIRECTS} redirects")

    async def _body(
        self, response: aiohttp.ClientResponse, part: MediaPart, budget: Budget
    ) -> bytes:
        limit = self._limits.max_download_bytes
        _require_size(response.content_length or 0, limit, part)
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            _require_size(len(body) + len(chunk), limit, part)
            budget.charge(len(chunk))
            body += chunk
        return bytes(body)

    def _checked(self, text: str, part: MediaPart) -> URL:
        """The very URL object that is requested, so that no second parser may see another host."""
        try:
            has_host = bool(urlsplit(text).hostname)
            url = URL(text) if has_host else URL()
            host = (url.host or "").lower()
        except ValueError as error:
            raise bad_request(f"Failed to parse the media URL: {error}") from error
        if not has_host:
            raise _unprocessable(part, "Invalid URL: it names no host")
        if url.scheme not in ("http", "https"):
            raise bad_request("The URL must be either a HTTP, data or file URL.")
        if any(map(str.isspace, host)):
            raise bad_request(f"Failed to parse the media URL: {host!r} is no host")
        if self._domains and host not in self._domains:
            raise bad_request(
                f"The URL must be from one of the allowed domains: {sorted(self._domains)}."
                f" Input URL domain: {host}"
            )
        return url


class _Retriable(Exception):
    """May work at the next try; `answer` is what the caller gets if there is none."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(answer.message)
        self.answer = answer


class _ForbiddenAddress(OSError):
    """The socket that would have been opened."""


def _guarded_socket(info: Any) -> socket.socket:
    """Called for every address about to be connected to, however its name was written."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        refused = _refused.get()
        if refused is not None:
            refused.append(str(address[0]))
        raise _ForbiddenAddress(f"{address[0]} is not a public address")
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    return made


@contextlib.contextmanager
def _translated(part: MediaPart, refused: list[str]) -> Iterator[None]:
    """aiohttp's exceptions in the caller's terms."""
    try:
        yield
    except TimeoutError as error:
        raise _Retriable(_timed_out(part)) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        if refused:
            raise bad_request(
                "The URL leads to an address that is not public, which is not allowed; the"
                " operator can name trusted hosts in --allowed-media-domains."
            ) from error
        raise _Retriable(_unprocessable(part, _reason(error))) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise _unprocessable(part, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host} is not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}"
    return str(error) or type(error).__name__


def _require_success(status: int, part: MediaPart) -> None:
    if status < 400:
        return
    answer = _unprocessable(part, f"HTTP {status} error")
    if status >= 500:
        raise _Retriable(answer)
    raise answer


def _require_size(size: int, limit: int, part: MediaPart) -> None:
    if 0 < limit < size:
        raise _unprocessable(
            part,
            f"Remote media download exceeds {limit} bytes (VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB):"
            f" at least {size}",
        )


def _unprocessable(part: MediaPart, reason: str) -> ApiError:
    url = str(part.source)
    shown = url if len(url) <= 200 else f"{url[:200]}…"
    return ApiError(
        f"Failed to fetch media from URL: {reason} (parameter={part.param}, value={shown})",
        status=422,
        type="UnprocessableEntityError",
        param=part.param,
    )


def _timed_out(part: MediaPart) -> ApiError:
    return ApiError(
        "Failed to fetch media from URL: the server did not deliver in time"
        f" (parameter={part.param})",
        status=504,
        type="GatewayTimeoutError",
        param=part.param,
        code=FailureCode.UPSTREAM_TIMEOUT,
    )


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
