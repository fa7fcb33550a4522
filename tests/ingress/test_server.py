import asyncio
import socket

import httpx
import pytest

from ingress.server import HttpServer, reserve
from runtime.errors import SettingsError
from schemas.routes import URL_OF_KIND, Kind


class SlowApp:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.entered, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        self.entered.set()
        await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


async def test_a_request_under_way_is_finished_before_the_server_ends():
    app = SlowApp()
    server = HttpServer(app, host="127.0.0.1", port=0)
    await server.start()

    async with httpx.AsyncClient(trust_env=False) as client:
        request = asyncio.create_task(client.get(f"http://127.0.0.1:{server.port}/"))
        await asyncio.wait_for(app.entered.wait(), 10)
        closing = asyncio.create_task(server.close())
        app.released.set()
        response = await asyncio.wait_for(request, 10)
        await asyncio.wait_for(closing, 10)

        assert response.text == "done"
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{server.port}/")


async def test_answers_do_not_wait_for_acknowledgements():
    """With Nagle's algorithm on, the second packet of an answer leaves 40 ms late."""
    nodelay = []

    async def app(scope, receive, send) -> None:
        for connection in server._server.server_state.connections:
            sock = connection.transport.get_extra_info("socket")
            nodelay.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = HttpServer(app, host="127.0.0.1", port=0)
    await server.start()

    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(f"http://127.0.0.1:{server.port}/")
    await server.close()

    assert nodelay == [1]


async def test_a_client_that_hangs_up_frees_its_place(make_app, gateway, fleet):
    fleet.answer = lambda envelope: None
    server = HttpServer(make_app(), host="127.0.0.1", port=0)
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)

    head = f"POST {URL_OF_KIND[Kind.DETOKENIZE]} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n{}")
    await fleet.until_seen(1)
    held = gateway.in_flight
    writer.close()
    async with asyncio.timeout(10):
        while gateway.in_flight:
            await asyncio.sleep(0)
    await server.close()

    assert held == 1


async def test_a_port_in_use_is_one_readable_line():
    first = HttpServer(SlowApp(), host="127.0.0.1", port=0)
    await first.start()

    with pytest.raises(SettingsError, match=r"cannot listen on 127\.0\.0\.1"):
        await HttpServer(SlowApp(), host="127.0.0.1", port=first.port).start()

    await first.close()
    await first.close()


async def test_an_address_of_nobody_is_one_readable_line():
    with pytest.raises(SettingsError, match="cannot listen"):
        await HttpServer(SlowApp(), host="no.such.host.invalid", port=0).start()


async def test_a_reserved_address_is_shared_by_those_who_are_meant_to_and_by_nobody_else():
    with reserve("127.0.0.1", 0) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(SettingsError, match="in use"):
            reserve("127.0.0.1", port)
        with pytest.raises(SettingsError, match="in use"):
            await HttpServer(SlowApp(), host="127.0.0.1", port=port).start()

        servers = [
            HttpServer(SlowApp(), host="127.0.0.1", port=port, shares_port=True) for _ in range(2)
        ]
        for server in servers:
            await server.start()
        with pytest.raises(SettingsError, match="in use"):
            reserve("127.0.0.1", port)

    for server in servers:
        await server.close()


async def test_an_address_that_is_listened_on_cannot_be_reserved():
    server = HttpServer(SlowApp(), host="127.0.0.1", port=0)
    await server.start()

    with pytest.raises(SettingsError, match="in use"):
        reserve("127.0.0.1", server.port)

    await server.close()


async def test_an_address_is_reserved_right_after_a_server_has_left_it():
    """Its connections linger in TIME_WAIT."""
    server = HttpServer(SlowApp(), host="127.0.0.1", port=0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await server.close()
    await reader.read()
    writer.close()

    reserve("127.0.0.1", server.port).close()
