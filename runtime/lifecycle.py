"""Runs the services of a process: start in order, stop in reverse, under one time budget.

The first SIGTERM or SIGINT drains, a second ends the process at once. Knows no service by name.
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from runtime.errors import SettingsError
from runtime.health import Readiness

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
"""A service could not start, died, or would not stop."""
EXIT_SETTINGS = 2
EXIT_FORCED = 3
"""Told twice to end."""

# New objects until the collector looks: a request makes hundreds, and none that needs it.
_COLLECT_AFTER = 10_000

# What the services after one get at least, however long that one took.
_LAST_CALL_S = 1.0
# Of what is left, so that those behind it still have some.
_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Service:
    """One part of a process."""

    name: str
    start: Callable[[], Awaitable[None]]
    """Return once usable. SettingsError: one readable line, exit code 2."""
    stop: Callable[[float], Awaitable[None]]
    """Gets the seconds it may take. Called as well after a failed or cancelled start."""
    run: Callable[[], Awaitable[None]] | None = None
    """Work in the background. An exception ends the process; returning drains it."""


async def run_services(
    services: Sequence[Service],
    *,
    timeout_s: float,
    readiness: Readiness | None = None,
    told_to_end: asyncio.Event | None = None,
) -> int:
    """Run until a signal, or until a service ends, and return the exit code.

    A SettingsError of a start is raised, after what had started is stopped. Where `told_to_end` is
    given, signals are left alone.
    """
    readiness = readiness or Readiness()
    started: list[Service] = []
    with nullcontext(told_to_end) if told_to_end else _signals() as ending:
        try:
            code = await _run(services, started, ending)
        finally:
            readiness.is_draining = True
            is_clean = await _stop_all(started, timeout_s)
    return code if code or is_clean else EXIT_FAILED


async def _run(
    services: Sequence[Service], started: list[Service], told_to_end: asyncio.Event
) -> int:
    ending = asyncio.create_task(told_to_end.wait(), name="signal")
    starting = asyncio.create_task(_start_all(services, started), name="start")
    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.wait([ending, starting], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return EXIT_OK
        starting.result()
        tasks = [asyncio.create_task(_run_one(s, s.run), name=s.name) for s in started if s.run]
        await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
        return EXIT_FAILED if any(_has_died(task) for task in tasks) else EXIT_OK
    except SettingsError:
        raise
    except Exception:
        logger.critical("start_failed", exc_info=True)
        return EXIT_FAILED
    finally:
        await _cancel([ending, starting, *tasks])


async def _start_all(services: Sequence[Service], started: list[Service]) -> None:
    for service in services:
        started.append(service)
        began = time.monotonic()
        await service.start()
        seconds = round(time.monotonic() - began, 3)
        logger.info("service_started", extra={"service": service.name, "seconds": seconds})
    gc.collect()
    gc.freeze()  # what is there now stays: no collection has to look at it again
    gc.set_threshold(_COLLECT_AFTER)


async def _run_one(service: Service, run: Callable[[], Awaitable[None]]) -> None:
    await run()
    logger.info("service_ended", extra={"service": service.name})


def _has_died(task: asyncio.Task[None]) -> bool:
    if not task.done() or task.cancelled() or (error := task.exception()) is None:
        return False
    logger.critical("service_died", extra={"service": task.get_name()}, exc_info=error)
    return True


async def _stop_all(started: Sequence[Service], timeout_s: float) -> bool:
    """Whether all of them stopped in time and without an error."""
    give_up_at = time.monotonic() + timeout_s
    # A list: the others are stopped even after one has failed.
    results = [await _stop_one(service, give_up_at) for service in reversed(started)]
    return all(results)


async def _stop_one(service: Service, give_up_at: float) -> bool:
    remaining_s = max(give_up_at - time.monotonic(), _LAST_CALL_S)
    try:
        async with asyncio.timeout(remaining_s):
            await service.stop(remaining_s * _SHARE)
    except TimeoutError:
        logger.error("stop_timed_out", extra={"service": service.name})
        return False
    except Exception:
        logger.exception("stop_failed", extra={"service": service.name})
        return False
    logger.info("service_stopped", extra={"service": service.name})
    return True


async def _cancel(tasks: Sequence["asyncio.Task[None] | asyncio.Task[bool]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _signals() -> Iterator[asyncio.Event]:
    loop = asyncio.get_running_loop()
    told_to_end = asyncio.Event()

    def on_signal() -> None:
        if told_to_end.is_set():
            os._exit(EXIT_FORCED)
        logger.info("shutdown_requested")
        told_to_end.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield told_to_end
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
