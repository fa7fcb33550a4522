"""Waiting for several calls, and one call for several."""

import asyncio

import pytest

from workers.models.memo import Memo
from workers.models.stored import StoredItem, namespace, uuid_name
from workers.models.waiting import SingleFlight, in_order, until_failure
from workers.render.media import Replacement


async def _value(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _failure(error: Exception) -> int:
    await asyncio.sleep(0)
    raise error


async def test_results_are_in_the_order_of_the_calls() -> None:
    assert await in_order([_value(3), _value(1), _value(2)]) == [3, 1, 2]
    assert await in_order([]) == []


async def test_the_first_failure_in_order_is_raised_and_the_rest_stopped() -> None:
    stopped = asyncio.Event()

    async def endless() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 0

    with pytest.raises(ValueError, match="a"):
        await in_order([_failure(ValueError("a")), _failure(KeyError("b")), endless()])
    assert stopped.is_set()


async def test_the_first_failure_in_order_may_come_last() -> None:
    late = asyncio.Event()

    async def slow() -> int:
        await late.wait()
        raise ValueError("slow")

    async def fast() -> int:
        late.set()
        raise KeyError("fast")

    results, failure = await until_failure([_value(1), slow(), fast()])

    assert results == [1]
    assert isinstance(failure, ValueError)


async def test_a_failed_flight_is_flown_again() -> None:
    flights: SingleFlight[int] = SingleFlight()

    with pytest.raises(ValueError, match="no"):
        await flights.run("k", lambda: _failure(ValueError("no")))
    assert await flights.run("k", lambda: _value(5)) == 5


async def test_everybody_gets_the_result_of_one_flight() -> None:
    flights: SingleFlight[int] = SingleFlight()
    starts = []

    async def call() -> int:
        starts.append(1)
        return await _value(7)

    assert await asyncio.gather(*(flights.run("k", call) for _ in range(5))) == [7] * 5
    assert starts == [1]


async def test_a_flight_ends_with_its_last_waiter() -> None:
    flights: SingleFlight[int] = SingleFlight()
    over = asyncio.Event()

    async def call() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return 1

    waiters = [asyncio.ensure_future(flights.run("k", call)) for _ in range(2)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.gather(waiters[0], return_exceptions=True)
    assert not over.is_set()
    waiters[1].cancel()
    await asyncio.gather(waiters[1], return_exceptions=True)
    async with asyncio.timeout(5):
        await over.wait()

    assert await flights.run("k", lambda: _value(5)) == 5


def test_a_memo_forgets_what_was_used_least_recently() -> None:
    memo: Memo[int] = Memo(2)
    memo.put("a", 1)
    memo.put("b", 2)
    memo.get("a")
    memo.put("c", 3)

    assert (memo.get("a"), memo.get("b"), memo.get("c")) == (1, None, 3)


def test_a_stored_item_comes_back_as_it_was() -> None:
    item = StoredItem("image", "c0ffee", None, b"m", Replacement(((7, 2), (8, 1))), [(0, 2)])

    assert StoredItem.decode(item.encode()) == item


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\x80", b"\x81\xa7version\x63", b"\x01"])
def test_what_is_no_stored_item_counts_as_none(data: bytes) -> None:
    assert StoredItem.decode(data) is None


def test_tenants_and_settings_have_names_of_their_own() -> None:
    base = namespace(model="m", processing={"a": 1}, tenant="")

    assert base != namespace(model="m", processing={"a": 1}, tenant="x")
    assert base != namespace(model="m", processing={"a": 2}, tenant="")
    assert base != namespace(model="n", processing={"a": 1}, tenant="")


@pytest.mark.parametrize("uuid", ["../../x", "a/b", "", "=abc", "ü", "x" * 500, "a b"])
@pytest.mark.parametrize("salt", [None, "", "salt"])
def test_any_uuid_has_a_plain_object_name(uuid: str, salt: str | None) -> None:
    name = uuid_name("ns", "image", uuid, salt)

    assert name.count("/") == 3
    assert ".." not in name
    assert name != uuid_name("ns", "image", uuid + "1", salt)
    assert name != uuid_name("ns", "image", uuid, "other")
