"""One HTTP/1.1 connection: uvicorn's on httptools, with bounds to what a client may send.

httptools bounds nothing by itself, so everything that is not body is counted here: request lines,
headers, trailers, chunk sizes and their extensions. Knows no route.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from ingress.corked import CorkedTransport
from schemas.errors import ApiError, FailureCode

logger = logging.getLogger(__name__)

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 256
"""vLLM's `--h11-max-header-count`."""
MAX_PIPELINED = 64
"""Requests that wait for the answer to the one before them."""
LINGER_S = 2.0
"""How long what a refused client still sends is read and thrown away, so that it can read why."""
LINGER_BYTES = 64 * 1024 * 1024
UNREAD_S = 60.0
"""How long a client may leave an answer unread."""
_CHUNK_FRAME_BYTES = 16
_FRAME_SLACK_BYTES = 256 * 1024
"""What comes in one piece is looked at as a whole."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What connections may cost."""

    max_head_bytes: int = 64 * 1024
    """Request line and headers of a request, trailers included."""
    receive_timeout_s: float = 20.0
    """From the first byte, or the connection, to the end of the head."""
    max_connections: int = 4096


class Connections:
    """The open connections of a server. When there are too many, who waits longest without having
    asked for anything makes room."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._count = 0
        self._idle: dict[Connection, None] = {}

    def opened(self, connection: "Connection") -> bool:
        """False where it is one too many."""
        self._count += 1
        if self._count > self.limits.max_connections:
            if not self._idle:
                return False
            next(iter(self._idle)).drop()
        self._idle[connection] = None
        return True

    def asked(self, connection: "Connection") -> None:
        self._idle.pop(connection, None)

    def answered(self, connection: "Connection") -> None:
        self._idle[connection] = None

    def closed(self, connection: "Connection") -> None:
        self._count -= 1
        self._idle.pop(connection, None)


class _Refused(Exception):
    """Ends the parser's work."""


class Connection(HttpToolsProtocol):
    """Refuses in JSON, and closes, what is malformed or beyond the limits."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = connections
        self._limits = connections.limits
        self._timer: asyncio.TimerHandle | None = None
        """For the head, and for what follows an early answer: never both at once."""
        self._unread_timer: asyncio.TimerHandle | None = None
        self._is_in_body = False
        self._is_closing = False
        self._problem: ApiError | None = None
        self._lingering = 0
        self._silent = 0
        """Bytes since the parser last made anything of them."""
        self._received = self._head_bytes = self._num_headers = 0
        self._body_bytes = self._num_chunks = 0

    # asyncio's protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport, self.loop))  # type: ignore[arg-type]
        if self._all.opened(self):
            self._start_timer(self._limits.receive_timeout_s, self._head_is_late)
        else:
            self._refuse(_TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.closed(self)
        self._is_closing = True
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            self._throw_away(len(data))
            return
        self._unset_keepalive_if_required()
        if self._timer is None and not self._is_in_body and self._is_answered:
            self._start_timer(self._limits.receive_timeout_s, self._head_is_late)
        self._silent += len(data)
        self._received += len(data)
        try:
            self.parser.feed_data(data)
            problem = self._frame_problem()
        except httptools.HttpParserUpgrade:
            return  # to a protocol that is not spoken here: the request is answered as it is
        except httptools.HttpParserError as error:
            problem = self._problem or _malformed(error)
        if problem is not None:
            self._refuse(problem)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_unread_timer()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._silent = self._received = self._head_bytes = self._num_headers = 0
        self._body_bytes = self._num_chunks = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._silent = 0
        self._head_bytes += len(url)
        if len(self.url) > MAX_URL_BYTES:
            self._fail(_LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._silent = 0
        self._num_headers += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.max_head_bytes or self._num_headers > MAX_HEADERS:
            self._fail(_large_head(self._limits))
        if not self._is_in_body:  # trailers are no headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(_TOO_MANY_AT_ONCE)
        self._is_in_body = True
        self._all.asked(self)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._silent = 0
        self._num_chunks += 1

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent = 0
        self._is_in_body = False
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self._is_closing:
            self._all.answered(self)
        if self._is_in_body and not self._is_closing:
            self._start_timer(LINGER_S, self.drop)

    def drop(self) -> None:
        """Close without a word."""
        self._is_closing = True
        self.transport.close()

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _frame_problem(self) -> ApiError | None:
        if self._silent > self._limits.max_head_bytes:
            return _large_head(self._limits)
        # As Go's net/http: chunks may be small, but their frame no more than a frame.
        if self._num_chunks:
            carried = 2 * self._body_bytes + _CHUNK_FRAME_BYTES * self._num_chunks
            if self._received - carried > self._limits.max_head_bytes + _FRAME_SLACK_BYTES:
                return _FRAME
        return None

    def _fail(self, error: ApiError) -> None:
        """Out of a callback, through the parser."""
        self._problem = error
        raise _Refused

    def _head_is_late(self) -> None:
        if self._silent or self._head_bytes:
            self._refuse(_LATE_HEAD)
        else:
            self.drop()

    def _refuse(self, error: ApiError) -> None:
        """Answer, where no other answer is under way, and close."""
        if self._is_closing:
            return
        logger.info(
            "http_refused",
            extra={"status": error.status, "reason": error.message, "client": address(self.client)},
        )
        self._is_closing = True
        self._stop_timer()
        cycle, is_alone = self.cycle, not self.pipeline
        if cycle is not None and not cycle.response_complete:
            is_alone = is_alone and self._is_in_body and not cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
        if is_alone:
            self.transport.write(_encoded(error))
            self.transport.write_eof()
            self._start_timer(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def _throw_away(self, count: int) -> None:
        self._lingering += count
        if self._lingering > LINGER_BYTES:
            self.transport.close()

    def _start_timer(self, after_s: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(after_s, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


def address(client: tuple[str, int] | None) -> str:
    return f"{client[0]}:{client[1]}" if client else ""


def _encoded(error: ApiError) -> bytes:
    body = orjson.dumps(error.body())
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    head += "retry-after: 1\r\n\r\n" if error.status == 503 else "\r\n"
    return STATUS_LINE[error.status] + head.encode() + body


def _error(status: int, kind: str, message: str) -> ApiError:
    return ApiError(message, status=status, type=kind, code=FailureCode.INVALID_REQUEST)


def _malformed(error: httptools.HttpParserError) -> ApiError:
    reason = "" if isinstance(error, httptools.HttpParserCallbackError) else f": {error}"
    return _error(400, "Bad Request", f"Invalid HTTP request{reason[:200]}")


def _large_head(limits: ConnectionLimits) -> ApiError:
    return _error(
        431,
        "RequestHeaderFieldsTooLarge",
        f"The request's head is larger than the {limits.max_head_bytes} bytes or has more than the "
        f"{MAX_HEADERS} headers that this server accepts.",
    )


_LONG_URL = _error(
    414, "URITooLong", f"The URL is longer than the {MAX_URL_BYTES} bytes this server accepts."
)
_LATE_HEAD = _error(408, "RequestTimeout", "The request's head did not arrive in time.")
_FRAME = _error(400, "Bad Request", "Chunked encoding contains too much that is not data.")
_TOO_MANY_AT_ONCE = _error(
    400, "Bad Request", f"More than {MAX_PIPELINED} requests wait on this connection."
)
_TOO_MANY_CONNECTIONS = ApiError(
    "The server has too many connections; try again in a moment.",
    status=503,
    type="ServiceUnavailableError",
)
