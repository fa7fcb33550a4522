"""`/health`, `/ready` and `/metrics` of a role without HTTP front, on a few lines of asyncio.

Answers GET and HEAD, one request per connection, reads no bodies. Knows no role.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import orjson

from runtime.addresses import listening_problem, url_of
from runtime.errors import SettingsError
from runtime.settings import HealthSettings
from runtime.telemetry import CONTENT_TYPE, Telemetry
from schemas.errors import ApiError

logger = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 8 * 1024
_READ_TIMEOUT_S = 5.0
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}

Check = Callable[[], str | None]
"""What is missing, in words; None: nothing is."""


class Readiness:
    """Why this process should not get work yet, or any more. Shared by all parts of a process."""

    def __init__(self) -> None:
        self.is_draining = False
        self._checks: list[Check] = []

    def require(self, check: Check) -> None:
        self._checks.append(check)

    def require_true(self, is_met: Callable[[], bool], reason: str) -> None:
        self.require(lambda: None if is_met() else reason)

    def reasons(self) -> list[str]:
        """Empty: ready."""
        draining = ["shutting down"] if self.is_draining else []
        return draining + [reason for check in self._checks if (reason := check()) is not None]


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    allow: str | None = None


class HealthServer:
    """Owned by the process: started first, so that a loading role is seen; stopped last."""

    def __init__(
        self,
        settings: HealthSettings,
        *,
        readiness: Readiness,
        telemetry: Telemetry,
        liveness: Sequence[Check] = (),
        default_port: int = 0,
    ) -> None:
        """`default_port`: where the settings name none; any other one, where it is taken."""
        self._settings = settings
        self._default_port = default_port
        self._readiness = readiness
        self._telemetry = telemetry
        self._liveness = liveness
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """SettingsError where the port that was asked for cannot be had."""
        asked = self._settings.health_port
        port = self._default_port if asked is None else asked
        told = {}
        try:
            self._server = await self._listen(port)
        except OSError as error:
            if asked is not None or error.errno != errno.EADDRINUSE:
                raise _not_to_be_had(self._settings.health_host, port, error) from error
            self._server = await self._listen(0)
            told = {"instead_of": port}
        url = url_of(self._settings.health_host, self.port)
        logger.info("health_listening", extra={"url": url, **told})

    async def _listen(self, port: int) -> asyncio.Server:
        host = self._settings.health_host
        return await asyncio.start_server(self._serve, host, port, limit=_MAX_HEAD_BYTES)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    def answer(self, method: str, path: str) -> Answer:
        """Decides; touches no connection."""
        if path not in ("/health", "/ready", "/metrics"):
            return _error(404, "NotFoundError", f"no such path: {path[:100]}")
        if method not in ("GET", "HEAD"):
            return _error(
                405, "MethodNotAllowedError", f"{method[:20]} is not allowed", "GET, HEAD"
            )
        if path == "/metrics":
            return Answer(200, self._telemetry.render(), CONTENT_TYPE)
        if path == "/ready":
            return _status("ready", self._readiness.reasons())
        return _status("ok", [reason for check in self._liveness if (reason := check())])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            method, answer = await self._read(reader)
            writer.write(_encode(answer, with_body=method != "HEAD"))
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, Answer]:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _version = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        except asyncio.LimitOverrunError:
            return "", _error(431, "BadRequestError", "the request is too large")
        except TimeoutError:
            return "", _error(408, "BadRequestError", "the request took too long")
        except (asyncio.IncompleteReadError, ValueError):
            return "", _error(400, "BadRequestError", "not an HTTP request")
        return method, self.answer(method, target.split("?", 1)[0])


def _not_to_be_had(host: str, port: int, error: OSError) -> SettingsError:
    reason = listening_problem(error)
    return SettingsError(f"--health-port {port}: cannot listen on {url_of(host, port)}: {reason}")


def _status(word: str, reasons: Sequence[str]) -> Answer:
    if reasons:
        return Answer(503, orjson.dumps({"status": f"not {word}", "reasons": reasons}))
    return Answer(200, orjson.dumps({"status": word}))


def _error(status: int, kind: str, message: str, allow: str | None = None) -> Answer:
    body = ApiError(message, status=status, type=kind).body()
    return Answer(status, orjson.dumps(body), allow=allow)


def _encode(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_PHRASES[answer.status]}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(answer.body)}",
        "connection: close",
        *([f"allow: {answer.allow}"] if answer.allow else []),
    ]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head + (answer.body if with_body else b"")
