"""Start in order, stop in reverse, one budget, signals and exit codes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runtime.errors import SettingsError
from runtime.health import Readiness
from runtime.lifecycle import (
    EXIT_FAILED,
    EXIT_FORCED,
    EXIT_OK,
    Service,
    run_services,
)

ROOT = Path(__file__).parents[2]


async def nothing(*_: object) -> None:
    return


async def forever() -> None:
    await asyncio.Event().wait()


class Journal:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def service(
        self,
        name: str,
        *,
        start: Callable[[], Awaitable[None]] = nothing,
        stop: Callable[[float], Awaitable[None]] = nothing,
        run: Callable[[], Awaitable[None]] | None = None,
    ) -> Service:
        async def noted_start() -> None:
            self.lines.append(f"start {name}")
            await start()

        async def noted_stop(timeout_s: float) -> None:
            self.lines.append(f"stop {name}")
            await stop(timeout_s)

        return Service(name, noted_start, noted_stop, run)


def signal_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def test_services_start_in_order_and_stop_in_reverse_on_a_signal():
    journal, readiness = Journal(), Readiness()

    async def end_soon() -> None:
        assert readiness.reasons() == []
        signal_self()

    services = [journal.service("a"), journal.service("b", run=forever)]
    services.append(journal.service("c", start=end_soon, run=forever))

    code = await run_services(services, timeout_s=5, readiness=readiness)

    assert code == EXIT_OK
    assert journal.lines == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    assert readiness.reasons() == ["shutting down"]


async def test_a_service_that_dies_ends_the_process_with_a_failure():
    journal = Journal()

    async def die() -> None:
        raise ZeroDivisionError

    services = [journal.service("a", run=forever), journal.service("b", run=die)]
    code = await run_services(services, timeout_s=5)

    assert code == EXIT_FAILED
    assert journal.lines[-2:] == ["stop b", "stop a"]


async def test_a_service_that_returns_drains_the_process():
    journal = Journal()
    services = [journal.service("a", run=forever), journal.service("job", run=nothing)]

    assert await run_services(services, timeout_s=5) == EXIT_OK
    assert journal.lines[-1] == "stop a"


async def test_a_failed_start_stops_what_had_started():
    journal = Journal()

    async def fail() -> None:
        raise OSError("no")

    services = [journal.service("a"), journal.service("b", start=fail), journal.service("c")]
    code = await run_services(services, timeout_s=5)

    assert code == EXIT_FAILED
    assert journal.lines == ["start a", "start b", "stop b", "stop a"]


async def test_a_settings_error_is_raised_after_stopping():
    journal = Journal()

    async def fail() -> None:
        raise SettingsError("--model: no such directory")

    with pytest.raises(SettingsError):
        await run_services([journal.service("a"), journal.service("b", start=fail)], timeout_s=5)

    assert journal.lines[-1] == "stop a"


async def test_a_signal_during_a_slow_start_stops_it():
    journal = Journal()

    async def load() -> None:
        signal_self()
        await forever()

    services = [journal.service("a"), journal.service("model", start=load), journal.service("c")]
    async with asyncio.timeout(5):
        code = await run_services(services, timeout_s=5)

    assert code == EXIT_OK
    assert journal.lines == ["start a", "start model", "stop model", "stop a"]


async def test_a_stop_that_hangs_or_fails_does_not_keep_the_others():
    journal = Journal()

    async def hang(_: float) -> None:
        await forever()

    async def fail(_: float) -> None:
        raise OSError("no")

    services = [
        journal.service("a"),
        journal.service("b", stop=fail),
        journal.service("c", stop=hang),
        journal.service("d", run=nothing),
    ]
    began = time.monotonic()
    code = await run_services(services, timeout_s=0.2)

    assert code == EXIT_FAILED
    assert journal.lines[-4:] == ["stop d", "stop c", "stop b", "stop a"]
    assert time.monotonic() - began < 5


async def test_every_stop_is_told_what_is_left_of_the_budget():
    journal = Journal()
    told: list[float] = []

    async def stop(timeout_s: float) -> None:
        told.append(timeout_s)
        await asyncio.sleep(0.1)

    services = [
        journal.service("a", stop=stop),
        journal.service("b", stop=stop),
        journal.service("job", run=nothing),
    ]
    await run_services(services, timeout_s=10)

    assert 7.5 < told[1] < told[0] <= 8


PROGRAM = """
import asyncio, sys
from runtime.lifecycle import Service, run_services

async def nothing(*_): pass
async def run():
    print("running", flush=True)
    await asyncio.Event().wait()
async def hang(_):
    print("stopping", flush=True)
    await asyncio.Event().wait()

sys.exit(asyncio.run(run_services([Service("a", nothing, hang, run)], timeout_s=60)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        assert process.wait(10) == EXIT_FORCED
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_where_somebody_else_tells_the_end_signals_are_left_alone():
    journal, told_to_end, seen = Journal(), asyncio.Event(), []
    previous = signal.signal(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))

    async def end_soon() -> None:
        signal_self()
        told_to_end.set()

    services = [journal.service("a", start=end_soon, run=forever)]
    try:
        code = await run_services(services, timeout_s=5, told_to_end=told_to_end)
    finally:
        signal.signal(signal.SIGTERM, previous)

    assert code == EXIT_OK
    assert seen == ["SIGTERM"]
    assert journal.lines == ["start a", "stop a"]
