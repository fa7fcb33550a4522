"""What a connection refuses, byte by byte: on a real socket, because no client library sends it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from ingress.connection import MAX_PIPELINED, ConnectionLimits
from ingress.server import HttpServer

LIMITS = ConnectionLimits(max_head_bytes=8 * 1024, receive_timeout_s=30.0, max_connections=8)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


class Echo:
    """Reads the body and tells its size, and what the headers were."""

    def __init__(self) -> None:
        self.scopes: list[dict] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, scope, receive, send) -> None:
        self.scopes.append(scope)
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
            more = message["more_body"]
        await self.hold.wait()
        body = str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


Serve = Callable[..., "asyncio.Future[HttpServer]"]


@pytest.fixture
async def app() -> Echo:
    return Echo()


@pytest.fixture
async def serve(app: Echo) -> AsyncIterator[Callable]:
    servers: list[HttpServer] = []

    async def start(limits: ConnectionLimits = LIMITS) -> HttpServer:
        server = HttpServer(app, host="127.0.0.1", port=0, limits=limits)
        servers.append(server)
        await server.start()
        return server

    yield start
    app.hold.set()
    for server in servers:
        await server.close()


async def ask(server: HttpServer, *pieces: bytes) -> tuple[int, bytes]:
    """Status and body of the first answer; (0, b"") where the connection ends without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        return await exchange(reader, writer, *pieces)
    finally:
        writer.close()


async def exchange(reader, writer, *pieces: bytes) -> tuple[int, bytes]:
    async with asyncio.timeout(20):
        for piece in pieces:
            writer.write(piece)
        try:
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            return 0, b""
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:-2])
        body = await reader.readexactly(int(fields[b"content-length"]))
        return int(head.split(b" ")[1]), body


async def test_a_request_within_the_limits_is_answered(serve) -> None:
    server = await serve()

    assert await ask(server, GET + b"x-a: " + b"a" * 7_000 + b"\r\n\r\n") == (200, b"0")
    assert await ask(server, POST + b"content-length: 5\r\n\r\n", b"12", b"345") == (200, b"5")


@pytest.mark.parametrize(
    "pieces",
    [
        (GET + b"x-a: " + b"a" * 9_000 + b"\r\n\r\n",),
        (GET + b"x-a: ", *[b"a" * 100_000] * 9),
        (GET + b"".join(b"x-%d: 1\r\n" % i for i in range(257)) + b"\r\n",),
        (GET, *[b"x-a: " + b"a" * 100 + b"\r\n"] * 100),
        (
            POST + CHUNKED + b"0\r\n",
            *[b"x-a: " + b"a" * 999 + b"\r\n"] * 12,
        ),
        (POST + CHUNKED + b"1;", *[b"a" * 100_000] * 9),
        (b"\r\n" * 5_000,),
    ],
    ids=["large", "large-in-pieces", "many", "sum", "trailers", "chunk-extension", "blank"],
)
async def test_what_is_no_body_is_bounded(serve, pieces: tuple[bytes, ...]) -> None:
    status, body = await ask(await serve(), *pieces)

    assert status == 431
    assert json.loads(body)["error"]["code"] == 431


async def test_a_long_url_is_refused(serve) -> None:
    server = await serve(ConnectionLimits(max_head_bytes=64 * 1024))

    status, body = await ask(server, b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n\r\n")

    assert (status, json.loads(body)["error"]["type"]) == (414, "URITooLong")


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"content-length: +2\r\n\r\n{}",
        b"content-length : 2\r\n\r\n{}",
        b"x-a: \0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"transfer-encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n",
    ],
)
async def test_ambiguous_framing_is_refused_in_json(serve, framing: bytes) -> None:
    status, body = await ask(await serve(), POST + framing)

    assert status == 400
    assert json.loads(body)["error"]["message"].startswith("Invalid HTTP request")


async def test_chunks_may_not_be_mostly_frame(serve) -> None:
    chunk = b"1;" + b"a" * 4_000 + b"\r\n.\r\n"

    status, body = await ask(await serve(), POST + CHUNKED, *[chunk] * 200)

    assert (status, b"not data" in body) == (400, True)


async def test_trailers_are_no_headers(serve, app: Echo) -> None:
    chunked = b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nauthorization: x\r\n\r\n"

    assert await ask(await serve(), POST + chunked) == (200, b"1")
    assert b"authorization" not in dict(app.scopes[0]["headers"])


async def test_a_head_that_takes_too_long_is_told_so(serve) -> None:
    server = await serve(ConnectionLimits(receive_timeout_s=0.05))

    assert (await ask(server, GET))[0] == 408
    assert (await ask(server))[0] == 0


async def test_the_head_of_a_second_request_has_a_time_limit_too(serve) -> None:
    server = await serve(ConnectionLimits(receive_timeout_s=0.2))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

    assert (await exchange(reader, writer, GET + b"\r\n"))[0] == 200
    assert (await exchange(reader, writer, GET))[0] == 408
    writer.close()


async def test_only_so_many_requests_wait_for_their_turn(serve, app: Echo) -> None:
    app.hold.clear()

    assert await ask(await serve(), (GET + b"\r\n") * (MAX_PIPELINED + 2)) == (0, b"")


async def test_a_few_pipelined_requests_are_answered_in_order(serve) -> None:
    server = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    posts = [POST + b"content-length: %d\r\n\r\n" % size + b"a" * size for size in (3, 1, 2)]

    assert await exchange(reader, writer, b"".join(posts)) == (200, b"3")
    assert [(await exchange(reader, writer))[1] for _ in "12"] == [b"1", b"2"]
    writer.close()


async def test_who_has_not_asked_makes_room_for_who_does(serve) -> None:
    server = await serve()
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]

    assert (await ask(server, GET + b"\r\n"))[0] == 200
    async with asyncio.timeout(10):
        assert await idle[0][0].read() == b""
    for _, writer in idle:
        writer.close()


async def test_one_connection_too_many_is_told_so_when_all_others_work(serve, app: Echo) -> None:
    server = await serve()
    app.hold.clear()
    busy = [asyncio.create_task(ask(server, GET + b"\r\n")) for _ in range(8)]
    async with asyncio.timeout(10):
        while len(app.scopes) < 8:
            await asyncio.sleep(0)

    status, _ = await ask(server, GET + b"\r\n")
    app.hold.set()

    assert status == 503
    assert [(await each)[0] for each in busy] == [200] * 8


async def test_an_upgrade_is_answered_as_any_request(serve) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: a\r\n\r\n"

    assert await ask(await serve(), GET + upgrade) == (200, b"0")


async def test_a_refused_client_can_still_read_why(serve) -> None:
    """It goes on sending for a while: a reset would throw its answer away."""
    server = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(GET + b"x-a: " + b"a" * 9_000)
    for _ in range(64):
        writer.write(b"a" * 65_536)
        await writer.drain()

    assert (await exchange(reader, writer))[0] == 431
    writer.close()
