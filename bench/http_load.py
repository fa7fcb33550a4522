"""A load generator that costs little: a process of its own, raw HTTP/1.1, answers only counted.

Reads one order per line of JSON from stdin and writes one report per line:

    {"case": 0, "host": "127.0.0.1", "port": 8100, "clients": 8, "seconds": 3.0, "first": 0,
     "most": null}
    {"seconds": 3.1, "latencies_ms": [...], "bytes": 123, "statuses": {"200": 97}}

Each client sends its next request when the answer to the last one is there, on one connection.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import uvloop
from render_cases import CASES, PATH

_BUFFER_BYTES = 1024 * 1024


class Connection(asyncio.BufferedProtocol):
    """One keep-alive connection; `send` a request, await (status, bytes of the body)."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[tuple[int, int]] | None = None
        self._head = b""
        self._status = self._length = self._missing = 0

    def send(self, chunks: Sequence[bytes]) -> "asyncio.Future[tuple[int, int]]":
        assert self._transport is not None
        self._head = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines(chunks)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._missing:
            self._missing -= nbytes
        elif not self._take_head(nbytes):
            return
        if not self._missing and self._answer is not None:
            self._answer.set_result((self._status, self._length))

    def _take_head(self, nbytes: int) -> bool:
        self._head += self._buffer[:nbytes]
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return False
        lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
        self._status = int(lines[0].split()[1])
        self._length = int(fields[b"content-length"])
        self._missing = self._length - len(rest)
        return True


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """All clients until time or requests are used up, then until the last answer is there."""
    loop = asyncio.get_running_loop()
    address = order["host"], order["port"]
    connections = [
        (await loop.create_connection(Connection, *address))[1] for _ in range(order["clients"])
    ]
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
        status, size = await connection.send(request)
        answers.append((time.perf_counter() - sent, status, size))


def main() -> None:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(run(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
