"""Threads for what a caller makes slow: a few run, a few wait, the rest come again."""

import asyncio
import threading

import pytest

from schemas.errors import Busy
from workers.render.apart import ThreadsApart

WAIT_S = 30.0


async def test_who_finds_no_place_comes_again() -> None:
    apart = ThreadsApart(1, 1, "test")
    gate = threading.Event()
    two = [asyncio.create_task(apart.run(gate.wait, WAIT_S)) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(Busy):
        await apart.run(gate.wait, WAIT_S)

    gate.set()
    assert await asyncio.gather(*two) == [True, True]
    assert await _when_free(apart) == 1
    apart.close()


async def test_a_call_whose_caller_left_keeps_its_place_until_it_ends() -> None:
    apart = ThreadsApart(1, 0, "test")
    gate, runs = threading.Event(), threading.Event()

    def work() -> None:
        runs.set()
        gate.wait(WAIT_S)

    left = asyncio.create_task(apart.run(work))
    await asyncio.to_thread(runs.wait, WAIT_S)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)

    with pytest.raises(Busy):
        await apart.run(int)

    gate.set()
    assert await _when_free(apart) == 1
    apart.close()


async def test_a_failure_frees_its_place() -> None:
    apart = ThreadsApart(1, 0, "test")

    with pytest.raises(ValueError, match="invalid literal"):
        await apart.run(int, "x")

    assert await _when_free(apart) == 1
    apart.close()


async def _when_free(apart: ThreadsApart) -> int:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await apart.run(int, "1")
            except Busy:
                await asyncio.sleep(0)
