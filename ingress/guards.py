"""What happens to every HTTP request whatever its route: keys, request ids, `vary`, counting.

Plain ASGI, because Starlette's own middleware base costs a task and a queue per request.
"""

import hashlib
import hmac
import time
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingress.access import log_access
from ingress.http_metrics import HttpMetrics
from schemas.ids import random_id

_VARY = (b"vary", b"Origin")
PROTECTED = ("/v1", "/v2", "/inference", "/cohere")


class ApiKeys:
    """Refuses requests to the API without one of the keys (06-launch §5); other paths are open."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys if key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_open(scope) or self._is_known(Headers(scope=scope)):
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return (
            not self._digests
            or scope["type"] != "http"
            or scope["method"] == "OPTIONS"
            or not scope["path"].startswith(PROTECTED)
        )

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = _digest(key)
        # All are compared, and by digest: the time taken tells nothing about any of them.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class ResponseHeaders:
    """Adds `vary`, and `x-request-id` where that is switched on, to every response."""

    def __init__(self, app: ASGIApp, request_ids: bool) -> None:
        self._app = app
        self._request_ids = request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], _VARY]
                if self._request_ids:
                    headers.append((b"x-request-id", _request_id(scope).encode("latin-1")))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Counted:
    """Counts and times responses, whatever ends them, and logs a line for each."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status, sent_bytes = 500, 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status, sent_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            took = time.perf_counter() - started
            self._metrics.observe(scope["method"], scope["path"], status, took)
            log_access(scope, status, sent_bytes, took)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _request_id(scope: Scope) -> str:
    return Headers(scope=scope).get("x-request-id") or random_id(32)
