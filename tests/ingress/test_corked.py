import asyncio

import httpx
from hypothesis import given
from hypothesis import strategies as st

from ingress.corked import LARGE_BYTES, CorkedTransport
from ingress.server import HttpServer

SMALL, LARGE = b"small", b"x" * LARGE_BYTES


class Wire:
    """The transport below: what each of its calls was given."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.is_open = True
        self.host = "127.0.0.1"

    def writelines(self, pieces: list[bytes]) -> None:
        assert self.is_open
        self.calls.append(list(pieces))

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    abort = close


def corked() -> tuple[CorkedTransport, Wire]:
    wire = Wire()
    return CorkedTransport(wire, asyncio.get_running_loop()), wire


async def one_round() -> None:
    await asyncio.sleep(0)


async def test_small_pieces_of_one_round_are_one_call():
    transport, wire = corked()

    transport.write(b"head")
    transport.write(b"body")
    assert wire.calls == []
    await one_round()

    assert wire.calls == [[b"head", b"body"]]


async def test_a_lone_piece_waits_no_longer_than_a_round():
    transport, wire = corked()

    transport.write(SMALL)
    await one_round()
    transport.write(SMALL)
    await one_round()

    assert wire.calls == [[SMALL], [SMALL]]


async def test_a_large_piece_goes_at_once_with_what_waits():
    transport, wire = corked()

    transport.write(SMALL)
    transport.write(LARGE)

    assert wire.calls == [[SMALL, LARGE]]
    await one_round()
    assert wire.calls == [[SMALL, LARGE]]


async def test_closing_sends_what_was_written():
    transport, wire = corked()

    transport.write(SMALL)
    transport.close()

    assert wire.calls == [[SMALL]]
    assert not wire.is_open


async def test_aborting_sends_nothing_more():
    transport, wire = corked()

    transport.write(SMALL)
    transport.abort()
    await one_round()

    assert wire.calls == []


async def test_a_client_that_left_is_sent_nothing():
    transport, wire = corked()

    transport.write(SMALL)
    wire.close()
    await one_round()

    assert wire.calls == []


async def test_everything_else_is_the_transports_own():
    transport, wire = corked()

    assert transport.host == wire.host


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", SMALL, LARGE]))))
def test_the_bytes_and_their_order_are_kept(rounds: list[list[bytes]]) -> None:
    async def written() -> Wire:
        transport, wire = corked()
        for pieces in rounds:
            transport.writelines(pieces)
            await one_round()
        return wire

    wire = asyncio.run(written())

    sent = b"".join(piece for call in wire.calls for piece in call)
    assert sent == b"".join(piece for pieces in rounds for piece in pieces)


async def test_a_server_sends_head_and_body_together():
    calls = []

    async def app(scope, receive, send) -> None:
        (connection,) = server._server.server_state.connections
        below = connection.transport._transport
        connection.transport._transport = Spy(below, calls)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    server = HttpServer(app, host="127.0.0.1", port=0)
    await server.start()
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{server.port}/")
    await server.close()

    assert answer.text == "done"
    assert len(calls) == 1


class Spy:
    def __init__(self, transport, calls) -> None:
        self._transport, self._calls = transport, calls

    def writelines(self, pieces) -> None:
        self._calls.append(pieces)
        self._transport.writelines(pieces)

    def __getattr__(self, name):
        return getattr(self._transport, name)
