"""What an attack on a running server is: something to send, and the answer that is right.

Attacks are listed by area in `tests.hostile.attacks`; tests and `bench/hostile.py` run all of them.
"""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import orjson

NAME = "m"
"""The served name of every model under attack."""
ANSWER_S = 120.0
"""An attack that is not answered by then was not held."""
_PIECE = 256 * 1024


class Answer(NamedTuple):
    """What came back."""

    status: int
    """0: the connection was closed without an answer."""
    body: bytes


CLOSED = Answer(0, b"")


@dataclass(frozen=True)
class Target:
    """A running server."""

    url: str
    folder: Path
    """Local media under it are allowed (`--allowed-local-media-path`)."""
    client: httpx.AsyncClient

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 80)


Send = Callable[[Target], Awaitable[Answer]]


@dataclass(frozen=True)
class Attack:
    """One hostile input and what is right for it."""

    name: str
    """In plain words: `progressive JPEG with 2 000 scans`."""
    send: Send
    expect: frozenset[int]
    """Right statuses; an empty set: the connection is closed without an answer."""
    flags: tuple[str, ...] = ()
    """Of `tokenfleet serve`, beyond the usual."""
    model: str = "tiny-qwen3-vl"
    """In `tests/data/models`; one without weights is served by `launch render`."""
    beside: bool = True
    """Whether text chats are timed beside it."""

    @property
    def group(self) -> tuple[str, tuple[str, ...]]:
        """Attacks of a group share a server."""
        return self.model, self.flags

    def is_right(self, answer: Answer) -> bool:
        return answer.status in (self.expect or {CLOSED.status})


Body = bytes | Mapping[str, Any] | Iterable[Any]


def post(
    path: str, body: Body | Callable[[], Body], headers: Mapping[str, str] | None = None
) -> Send:
    """Post a body, JSON unless it is bytes. A callable makes it when it is sent: for large ones."""

    async def send(target: Target) -> Answer:
        made = body() if callable(body) else body
        content = made if isinstance(made, bytes) else orjson.dumps(made)
        given = {"content-type": "application/json", **(headers or {})}
        try:
            response = await target.client.post(
                target.url + path, content=content, headers=given, timeout=ANSWER_S
            )
        except httpx.TransportError:
            return CLOSED
        return Answer(response.status_code, response.content)

    return send


def together(*sends: Send) -> Send:
    """All at once; the answer is the one with the highest status."""

    async def send(target: Target) -> Answer:
        return max(await asyncio.gather(*(each(target) for each in sends)))

    return send


def raw(pieces: Callable[[], AsyncIterable[bytes] | Iterable[bytes]]) -> Send:
    """Write to a bare connection what an HTTP client would not; the first answer that comes.

    Writing ends with the answer. What is written is not followed by the end of the connection.
    """

    async def send(target: Target) -> Answer:
        reader, writer = await asyncio.open_connection(target.host, target.port)
        writing = asyncio.create_task(_write(writer, pieces()))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await _first_answer(reader)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    return send


async def _write(
    writer: asyncio.StreamWriter, pieces: AsyncIterable[bytes] | Iterable[bytes]
) -> None:
    with suppress(OSError):
        if isinstance(pieces, AsyncIterable):
            async for piece in pieces:
                await _write_one(writer, piece)
        else:
            for piece in pieces:
                await _write_one(writer, piece)


async def _write_one(writer: asyncio.StreamWriter, piece: bytes) -> None:
    for start in range(0, len(piece), _PIECE):
        writer.write(piece[start : start + _PIECE])
        await writer.drain()
    await asyncio.sleep(0)


async def _first_answer(reader: asyncio.StreamReader) -> Answer:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        body = await reader.readexactly(int(fields.get("content-length", 0)))
    except (asyncio.IncompleteReadError, OSError):
        return CLOSED
    return Answer(int(lines[0].split(" ")[1]), body)
