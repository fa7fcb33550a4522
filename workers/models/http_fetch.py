"""Downloads media over HTTP without being led to places that are not the caller's business.

The address is checked where the socket is made, so name tricks, redirects and changing DNS answers
all end at the same gate. Decodes nothing.
"""

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from schemas.errors import ApiError, FailureCode
from schemas.refusals import bad_request
from workers.models.addresses import is_public
from workers.models.downloads import Downloads
from workers.models.limits import FREE_BYTES, MediaLimits
from runtime.shares import Claim
from workers.render.media import MediaPart

_CHUNK = 64 * 1024
_MAX_REDIRECTS = 10
_GRACE_S = 5.0
"""Until a body's pace is looked at."""
_NOTICED_S = 0.01
_RESOLVER_THREADS = 64
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
        self._turns = asyncio.Semaphore(limits.max_fetches)
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._asking: Counter[str] = Counter()
        self._names = _Names()
        factory = None if domains else _guarded_socket
        # Connections are counted here, where waiting for one does not count as the server's delay.
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=10, socket_factory=factory, resolver=aiohttp.ThreadedResolver(cast(Any, self._names))
        )
        # trust_env stays off: a proxy would connect in our place, unchecked.
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        await self._session.close()
        self._names.close()

    async def fetch(self, part: MediaPart, downloads: Downloads) -> bytes:
        """Wait for a connection among those of the request, the host and the process."""
        url = self._checked(part.source, part)
        try:
            async with asyncio.timeout(downloads.left_s), downloads.turns, self._turn(url):
                return await self._tried(url, part, downloads)
        except TimeoutError:
            raise _timed_out(part) from None

    @contextlib.asynccontextmanager
    async def _turn(self, url: URL) -> AsyncIterator[None]:
        """Of the host first: one that does not answer keeps nobody from another."""
        host = url.host or ""
        turns = self._hosts.setdefault(host, asyncio.Semaphore(self._limits.max_fetches_per_host))
        self._asking[host] += 1
        try:
            async with turns, self._turns:
                yield
        finally:
            self._asking[host] -= 1
            if not self._asking[host]:
                del self._asking[host], self._hosts[host]

    async def _tried(self, url: URL, part: MediaPart, downloads: Downloads) -> bytes:
        first = self._timeout(part.modality)
        for attempt in range(max(self._limits.max_fetch_attempts, 1)):
            if attempt:
                pause = self._limits.retry_delay_s * _BACKOFF ** (attempt - 1)
                await asyncio.sleep(min(pause, downloads.left_s))
            try:
                timeout = min(first * _BACKOFF**attempt, downloads.left_s)
                return await self._attempt(url, part, downloads, timeout)
            except _Retriable as error:
                failure = error.answer
                if downloads.left_s <= 0:
                    break
        raise failure

    def _timeout(self, modality: str) -> float:
        limits = self._limits
        return limits.video_fetch_timeout_s if modality == "video" else limits.image_fetch_timeout_s

    async def _attempt(
        self, url: URL, part: MediaPart, downloads: Downloads, timeout: float
    ) -> bytes:
        refused: list[str] = []
        token = _refused.set(refused)
        try:
            with _translated(part, refused):
                async with asyncio.timeout(timeout) as clock:
                    return await self._follow(url, part, downloads, clock)
        finally:
            _refused.reset(token)

    async def _follow(
        self, url: URL, part: MediaPart, downloads: Downloads, clock: asyncio.Timeout
    ) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    _require_success(response.status, part)
                    return await self._body(response, part, downloads, clock)
                target = response.headers.get("Location", "")
            if not self._limits.allow_redirects:
                raise _unprocessable(part, "the server redirects, and redirects are disabled")
            url = self._checked(str(url.join(URL(target))), part)
        raise _unprocessable(part, f"more than {_MAX_REDIRECTS} redirects")

    async def _body(
        self,
        response: aiohttp.ClientResponse,
        part: MediaPart,
        downloads: Downloads,
        clock: asyncio.Timeout,
    ) -> bytes:
        limit = self._limits.max_download_bytes
        _require_size(response.content_length or 0, limit, part)
        body, kept = bytearray(), 0
        pace = _Pace(self._limits.min_fetch_rate, part)
        try:
            async for chunk in response.content.iter_chunked(_CHUNK):
                _require_size(len(body) + len(chunk), limit, part)
                downloads.budget.charge(len(chunk))
                pace.check(len(body))
                share = max(len(body) + len(chunk) - FREE_BYTES - kept, 0)
                pace.pause(await _kept(downloads.memory, share, clock))
                kept += share
                body += chunk
        except BaseException:
            body.clear()  # the error may live longer, and knows this frame
            downloads.memory.give_back(kept)
            raise
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


class _Pace:
    """Whether a body arrives fast enough to be waited for."""

    def __init__(self, rate: int, part: MediaPart) -> None:
        self._rate = rate
        self._part = part
        self._began = time.monotonic()

    def check(self, received: int) -> None:
        """Raise ApiError where it does not; a second try would wait as long."""
        elapsed = time.monotonic() - self._began - _GRACE_S
        if elapsed > 0 and received < self._rate * elapsed:
            raise _timed_out(self._part)

    def pause(self, seconds: float) -> None:
        """We were the ones who waited."""
        self._began += seconds


async def _kept(memory: Claim, size: int, clock: asyncio.Timeout) -> float:
    """Take a share; the seconds that took do not count against the other side."""
    began = time.monotonic()
    await memory.keep(size)
    waited = time.monotonic() - began
    if waited > _NOTICED_S and (end := clock.when()) is not None:
        clock.reschedule(end + waited)
    return waited


class _Names:
    """Resolves names in threads of its own: those that nobody answers for keep no others busy.

    As much of an event loop as aiohttp's resolver asks for.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, "names")

    async def getaddrinfo(self, host: str, port: int, **hints: int) -> Any:
        call = partial(socket.getaddrinfo, host, port, **hints)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def getnameinfo(self, address: Any, flags: int = 0) -> tuple[str, str]:
        return socket.getnameinfo(address, flags)  # of numbers only: asks nobody

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


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
