"""What bodies may hold together, and how slowly they may come."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from ingress.bodies import PROGRESS_BYTES, SMALL_BYTES, BodyBudget, BodyLimits
from schemas.errors import ApiError

KIB = 1024
LIMITS = BodyLimits(max_bytes=256 * KIB, max_held_bytes=200 * KIB, receive_timeout_s=30.0)


class Client:
    """A request whose body arrives as the test says."""

    def __init__(self, **headers: str) -> None:
        self._queue: asyncio.Queue[dict] = asyncio.Queue()
        given = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        self.request = Request({"type": "http", "headers": given}, self._queue.get)

    def send(self, size: int, *, is_last: bool = False) -> None:
        self._queue.put_nowait(
            {"type": "http.request", "body": b"a" * size, "more_body": not is_last}
        )


async def reading(budget: BodyBudget, client: Client) -> bytes:
    with budget.body() as body:
        return await body.read(client.request)


async def until_held(budget: BodyBudget, count: int) -> None:
    async with asyncio.timeout(10):
        while budget.held_bytes != count:
            await asyncio.sleep(0)


async def refusal(work) -> int:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value.status


async def test_a_body_in_pieces_is_read_and_given_back() -> None:
    budget, client = BodyBudget(LIMITS), Client()
    for size in (10, 0, 50 * KIB):
        client.send(size)
    client.send(1, is_last=True)

    with budget.body() as body:
        assert await body.read(client.request) == b"a" * (50 * KIB + 11)
        assert budget.held_bytes == 50 * KIB + 11 - SMALL_BYTES
    assert budget.held_bytes == 0


async def test_the_largest_that_still_arrives_makes_room() -> None:
    budget = BodyBudget(LIMITS)
    large, small = Client(), Client()
    large.send(190 * KIB)
    slow = asyncio.create_task(reading(budget, large))
    await until_held(budget, 190 * KIB - SMALL_BYTES)

    small.send(100 * KIB, is_last=True)

    assert len(await reading(budget, small)) == 100 * KIB
    assert await refusal(slow) == 503
    assert budget.held_bytes == 0


async def test_who_would_be_the_largest_is_refused() -> None:
    budget = BodyBudget(LIMITS)
    first, second = Client(), Client()
    first.send(100 * KIB)
    slow = asyncio.create_task(reading(budget, first))
    await until_held(budget, 100 * KIB - SMALL_BYTES)

    second.send(150 * KIB, is_last=True)

    assert await refusal(reading(budget, second)) == 503
    first.send(1, is_last=True)
    assert len(await slow) == 100 * KIB + 1


async def test_small_bodies_need_no_room() -> None:
    budget = BodyBudget(LIMITS)
    with budget.body() as held:
        budget.hold(held, 200 * KIB)
        client = Client()
        client.send(SMALL_BYTES, is_last=True)

        assert len(await reading(budget, client)) == SMALL_BYTES


@pytest.mark.parametrize("first", [0, PROGRESS_BYTES - 1])
async def test_a_body_that_makes_no_progress_ends(first: int) -> None:
    budget = BodyBudget(BodyLimits(receive_timeout_s=0.05))
    client = Client()
    client.send(first)

    assert await refusal(reading(budget, client)) == 408


async def test_a_body_that_goes_on_has_more_time_but_not_for_ever() -> None:
    budget = BodyBudget(BodyLimits(receive_timeout_s=0.2, total_timeout_s=0.5))
    client = Client()

    async def drip() -> None:
        while True:
            client.send(PROGRESS_BYTES)
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    began = asyncio.get_running_loop().time()
    assert await refusal(reading(budget, client)) == 408
    assert asyncio.get_running_loop().time() - began > 0.3
    dripping.cancel()


async def test_what_is_announced_too_large_is_not_read() -> None:
    client = Client(content_length=str(LIMITS.max_bytes + 1))

    assert await refusal(reading(BodyBudget(LIMITS), client)) == 413


async def test_chunks_are_counted() -> None:
    budget, client = BodyBudget(BodyLimits(max_bytes=100 * KIB)), Client()
    client.send(60 * KIB)
    client.send(60 * KIB)

    assert await refusal(reading(budget, client)) == 413


async def test_compressed_bodies_are_refused() -> None:
    budget = BodyBudget(LIMITS)

    assert await refusal(reading(budget, Client(content_encoding="gzip"))) == 415
    plain = Client(content_encoding="identity")
    plain.send(1, is_last=True)
    assert await reading(budget, plain) == b"a"


@pytest.fixture
async def logged(caplog: pytest.LogCaptureFixture) -> AsyncIterator[pytest.LogCaptureFixture]:
    with caplog.at_level("INFO", logger="ingress"):
        yield caplog


async def test_a_request_is_one_line_in_the_log(make_client, logged) -> None:
    headers = {"content-type": "application/json", "x-request-id": "theirs" * 100}
    await make_client().post("/v1/completions?a=%0A", content=b"{}", headers=headers)
    await make_client().get("/health")

    (line,) = [r for r in logged.records if r.message == "http_request"]
    assert (line.method, line.path, line.status) == ("POST", "/v1/completions", 200)
    assert (line.received_bytes, line.sent_bytes) == (2, len(b'{"ok":true}'))
    assert line.caller_request_id == ("theirs" * 100)[:128]
    assert len(line.request_id) == 32
    assert line.duration_ms >= 0


async def test_a_long_request_id_is_refused(make_client, fleet) -> None:
    headers = {"content-type": "application/json", "x-request-id": "a" * 1025}
    response = await make_client().post("/v1/completions", content=b"{}", headers=headers)

    assert response.status_code == 400
    assert json.loads(response.content)["error"]["param"] == "x-request-id"
    assert not fleet.seen
