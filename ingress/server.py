"""uvicorn as a part of a larger process: starts, tells its port, drains.

Knows nothing of the application, and leaves signals to the process.
"""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn

from ingress.connection import Connection, ConnectionLimits, Connections
from runtime.errors import SettingsError

KEEP_ALIVE_S = 5
BACKLOG = 2048
_OTHER_FILES = 256
"""File descriptors that are left to everything but connections."""


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
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`shares_port`: other processes listen there, too, and the kernel spreads connections."""
        self._address = host, port
        self._shares_port = shares_port
        connections = Connections(_affordable(limits or ConnectionLimits()))
        self._server = _Server(
            uvicorn.Config(
                app,
                http=partial(Connection, connections=connections),  # type: ignore[arg-type]
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(shutdown_timeout_s)),
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

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        host = self._address[0] or "0.0.0.0"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def wait(self) -> None:
        """Until the server ends, by `close` or by a fault."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more; whether everything that was under way has been answered by then."""
        self._server.should_exit = True
        if self._task is None:
            return True
        await asyncio.wait({self._task}, timeout=timeout_s)
        return self._task.done()

    def abort(self) -> None:
        """Cut the connections that are left, as when a client keeps its body back."""
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    async def close(self) -> None:
        """Accept no more, finish what is under way within the budget. Safe to call twice."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


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


def _affordable(limits: ConnectionLimits) -> ConnectionLimits:
    """As many connections as there may be files, after raising that as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = max(soft - _OTHER_FILES, soft // 2)
        limits = replace(limits, max_connections=min(limits.max_connections, most))
    return limits


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
    return SettingsError(f"--port {port}: cannot listen on {host}:{port}: {error.strerror}")
