"""A transport that puts what is written in one go into one system call.

An answer's head and body, and the small pieces between its tensors, reach the transport one by
one; sent like that, each is a system call here and may wake the client in vain. As TCP_CORK, but
without its system calls. Knows no HTTP.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

LARGE_BYTES = 64 * 1024
"""From this size on a piece is sent at once, with all that waits for it."""


class CorkedTransport:
    """Around a transport of asyncio's: small writes wait for more until the loop's next round."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._size = 0
        self._is_scheduled = False

    def write(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= LARGE_BYTES:
            self._send()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._uncork)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def close(self) -> None:
        """What was written is sent first."""
        self._send()
        self._transport.close()

    def write_eof(self) -> None:
        """What was written is sent first."""
        self._send()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        self._waiting.clear()
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)

    def _uncork(self) -> None:
        self._is_scheduled = False
        self._send()

    def _send(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting and not self._transport.is_closing():  # the client may have left meanwhile
            self._transport.writelines(waiting)
