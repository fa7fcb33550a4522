import asyncio
import threading
import time

import pytest

from schemas.errors import ApiError, FailureCode, Transient
from workers.models.engine.thread import DeviceThread


class Count:
    """Steps that note who ran, and may wait for a gate before each."""

    def __init__(self, name, steps, log, gate=None):
        self.name, self.left, self.log, self.gate = name, steps, log, gate

    def step(self):
        if self.gate is not None:
            assert self.gate.wait(10)
        self.log.append(self.name)
        self.left -= 1
        return self.left == 0

    def result(self):
        if self.left > 0:
            return None
        return self.name, threading.current_thread().name


@pytest.fixture
async def thread():
    thread = DeviceThread("device", max_active=4)
    thread.start()
    yield thread
    await thread.close()


def later():
    return time.time() * 1000 + 60_000


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_work_runs_on_the_thread_and_returns_its_result(thread):
    log = []

    result = await thread.run(lambda: Count("a", 3, log), deadline_ms=later())

    assert result == ("a", "device")
    assert log == ["a"] * 3


async def test_jobs_take_turns_so_that_a_short_one_does_not_wait_for_a_long_one(thread):
    log, gate = [], threading.Event()
    long = asyncio.create_task(
        thread.run(lambda: Count("long", 50, log, gate), deadline_ms=later())
    )
    short = asyncio.create_task(thread.run(lambda: Count("short", 2, log), deadline_ms=later()))
    await asyncio.sleep(0)
    gate.set()

    await asyncio.gather(long, short)

    assert log.index("short") < log.index("long") + 5
    assert len(log) - log[::-1].index("short") < 10


async def test_a_cancelled_caller_stops_its_job_before_the_next_step(thread):
    log, gate = [], threading.Event()
    task = asyncio.create_task(
        thread.run(lambda: Count("a", 1_000_000, log, gate), deadline_ms=later())
    )
    gate.set()
    await until(lambda: log)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await thread.run(lambda: Count("b", 1, log), deadline_ms=later())

    assert log[-1] == "b"


async def test_a_passed_deadline_ends_the_job_between_steps(thread):
    log = []

    with pytest.raises(ApiError) as error:
        await thread.run(
            lambda: Count("a", 1_000_000_000, log), deadline_ms=time.time() * 1000 + 50
        )

    assert (error.value.status, error.value.code) == (504, FailureCode.DEADLINE_EXCEEDED)


async def test_an_error_concerns_its_job_only(thread):
    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await thread.run(broken, deadline_ms=later())

    assert (await thread.run(lambda: Count("a", 1, []), deadline_ms=later()))[0] == "a"


async def test_errors_are_translated():
    thread = DeviceThread("device", max_active=1, translate=lambda error: Transient(str(error)))
    thread.start()

    def broken():
        raise MemoryError("full")

    with pytest.raises(Transient, match="full"):
        await thread.run(broken, deadline_ms=later())
    await thread.close()


async def test_closing_fails_what_is_left_and_may_be_repeated():
    thread = DeviceThread("device", max_active=1)
    thread.start()
    log, gate = [], threading.Event()
    running = asyncio.create_task(
        thread.run(lambda: Count("a", 1_000_000_000, log, gate), deadline_ms=later())
    )
    waiting = asyncio.create_task(thread.run(lambda: Count("b", 1, log, gate), deadline_ms=later()))
    gate.set()
    await until(lambda: log)

    await thread.close()
    await thread.close()

    for task in (running, waiting):
        with pytest.raises(Transient):
            await task
    with pytest.raises(Transient):
        await thread.run(lambda: Count("c", 1, log), deadline_ms=later())


async def test_a_thread_that_never_started_closes():
    await DeviceThread("device", max_active=1).close()
