"""A load generator that costs little: a process of its own, raw HTTP/1.1, answers only counted.

Reads one order per line of JSON from stdin and writes one report per line:

    {"case": 0, "host": "127.0.0.1", "port": 8100, "clients": 8, "seconds": 3.0, "first": 0,
     "most": null}
    {"seconds": 3.1, "latencies_ms": [...], "bytes": 123, "statuses": {"200": 97}}

Each client sends its next request when the answer to the last one is there, on one connection.
"""

import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import uvloop
from render_cases import CASES, PATH

_HEAD_BYTES = 64 * 1024
_PIECE = bytearray(1024 * 1024)
"""What is skipped at most in one call; never written to on Linux."""
# A client on another machine would cost these cores nothing. Here Linux at least drops what was
# received without copying it, and wakes us for larger pieces only.
_SKIP = socket.MSG_TRUNC if sys.platform == "linux" else 0
_WAKING_BYTES = 512 * 1024


class Connection:
    """One keep-alive connection; `ask` sends a request and gives (status, bytes of the body)."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._answer: asyncio.Future[tuple[int, int]] | None = None
        self._head = b""
        self._status = self._length = self._missing = 0
        self._waking_bytes = 1
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    async def ask(self, chunks: Sequence[bytes]) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        self._head = b""
        self._answer = loop.create_future()
        await loop.sock_sendall(self._socket, b"".join(chunks))
        return await self._answer

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        try:
            is_complete = self._read_body() if self._missing else self._read_head()
        except OSError as error:
            asyncio.get_running_loop().remove_reader(self._socket)
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)
            return
        if is_complete and self._answer is not None:
            self._answer.set_result((self._status, self._length))

    def _read_body(self) -> bool:
        size = self._socket.recv_into(_PIECE, min(self._missing, len(_PIECE)), _SKIP)
        self._missing -= _unless_closed(size)
        self._wake_later()
        return not self._missing

    def _wake_later(self) -> None:
        least = max(min(self._missing, _WAKING_BYTES), 1)
        if least != self._waking_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._waking_bytes = least

    def _read_head(self) -> bool:
        received = self._socket.recv(_HEAD_BYTES)
        _unless_closed(len(received))
        self._head += received
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return False
        lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
        self._status = int(lines[0].split()[1])
        self._length = int(fields[b"content-length"])
        self._missing = self._length - len(rest)
        self._wake_later()
        return not self._missing


def _unless_closed(size: int) -> int:
    if size == 0:
        raise ConnectionError("the server closed the connection")
    return size


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """All clients until time or requests are used up, then until the last answer is there."""
    connections = [Connection(order["host"], order["port"]) for _ in range(order["clients"])]
    first = order["first"]
    numbers = count(first) if order["most"] is None else iter(range(first, first + order["most"]))
    answers: list[tuple[float, int, int]] = []
    started = time.perf_counter()
    until = started + order["seconds"]
    bodies = _requests(order["case"], numbers)
    await asyncio.gather(*(_client(c, bodies, until, answers) for c in connections))
    took = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return {
        "seconds": took,
        "latencies_ms": [round(seconds * 1000, 3) for seconds, _, _ in answers],
        "bytes": sum(size for _, _, size in answers),
        "statuses": Counter(str(status) for _, status, _ in answers),
        "next": first + len(answers),
    }


def _requests(case: int, numbers: Iterator[int]) -> Iterator[Sequence[bytes]]:
    head: bytes | None = None
    for number in numbers:
        chunks = CASES[case].body(number)
        if head is None:
            head = (
                f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                f"content-length: {sum(map(len, chunks))}\r\n\r\n"
            ).encode()
        yield [head, *chunks]


async def _client(
    connection: Connection,
    requests: Iterator[Sequence[bytes]],
    until: float,
    answers: list[tuple[float, int, int]],
) -> None:
    while (sent := time.perf_counter()) < until:
        if (request := next(requests, None)) is None:
            return
        status, size = await connection.ask(request)
        answers.append((time.perf_counter() - sent, status, size))


def main() -> None:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(run(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
