"""uvicorn as a part of a larger process: starts, tells its port, drains.

Knows nothing of the application, and leaves signals to the process.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ingress.corked import CorkedTransport
from runtime.errors import SettingsError

KEEP_ALIVE_S = 5
MAX_HEAD_BYTES = 4 * 1024 * 1024
BACKLOG = 2048


class HttpServer:
    """One listening address, from `start` to `close`."""

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        shutdown_timeout_s: float = 30.0,
        shares_port: bool = False,
    ) -> None:
        """`shares_port`: other processes listen there, too, and the kernel spreads connections."""
        self._address = host, port
        self._shares_port = shares_port
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_Protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(shutdown_timeout_s)),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = port
        """The one in use once started; 0 leaves the choice to the system."""

    async def start(self) -> None:
        """Return once connections are accepted. SettingsError where the address cannot be had."""
        listener = _listen(*self._address, shares_port=self._shares_port)
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve([listener]), name="http-server")
        await self._server.listening.wait()

    async def wait(self) -> None:
        """Until the server ends, by `close` or by a fault."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Accept no more, finish what is under way within the budget. Safe to call twice."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(CorkedTransport(transport, self.loop))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def reserve(host: str, port: int) -> socket.socket:
    """Hold an address for processes that are going to share it. SettingsError where it is taken.

    It is had as one process alone would have it, which refuses whoever listens there or holds it
    like this already, and only then opened to others. It listens no more: nothing connects to it.
    """
    if port == 0:  # named then, because one that the system chose would not be kept below
        with _listen(host, 0) as chosen:
            port = chosen.getsockname()[1]
    holder = _listen(host, port)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    holder.shutdown(socket.SHUT_RDWR)
    return holder


def _listen(host: str, port: int, *, shares_port: bool = False) -> socket.socket:
    """Not left to uvicorn, which ends the whole process where it cannot bind."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol is named because asyncio looks at it before it switches Nagle's algorithm
        # off; left at 0, every answer waits 40 ms for the client's delayed acknowledgement.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise _not_to_be_had(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _not_to_be_had(host, port, error) from None
    return listener


def _not_to_be_had(host: str, port: int, error: OSError) -> SettingsError:
    return SettingsError(f"cannot listen on {host}:{port}: {error.strerror}")
