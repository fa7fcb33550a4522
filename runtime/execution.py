"""Takes one record through its handler to acknowledged outputs, or to the next try.

Knows no offsets, no partitions' owners and no slots: the loop does.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from runtime.bus import Bus, Outgoing, Record, record_bytes
from runtime.errors import BusError, StoreError
from runtime.retry import RetryPolicy
from schemas.errors import DecodeError, Transient

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
Emit = Callable[[Outgoing], Awaitable[None]]
"""Writes a record while its handler still works; returns once it is acknowledged."""
_MAX_REFUSALS = 10


class Handler(Protocol):
    """What a loop calls. Both calls may come again for the same record, and may be cancelled."""

    async def handle(self, record: Record, emit: Emit) -> Sequence[Outgoing]:
        """Return what to write. Raise Transient to be called again later.

        What must go out before the work is done goes through `emit`, one record after another.
        The record's offset is committed after all of it; another call may emit the same again.
        """

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        """Return what to write instead of an outcome: poison, or attempts exhausted."""


@dataclass(frozen=True, slots=True)
class Done:
    """The outputs are acknowledged."""

    outcome: str
    """`done` or `given_up`."""
    bytes_out: int


@dataclass(frozen=True, slots=True)
class Again:
    """To be tried again after a wait."""

    delay_s: float
    outcome: str = "postponed"
    bytes_out: int = 0


class Execution:
    """Shared by all records of a loop; keeps nothing about any of them."""

    def __init__(self, bus: Bus, handler: Handler, policy: RetryPolicy) -> None:
        self._bus = bus
        self._handler = handler
        self._policy = policy

    async def run(self, record: Record, attempts: int) -> Done | Again:
        """`attempts` counts this one.

        Raises CancelledError, and BusError where the bus refuses even what says so: a producer
        that is broken for good, which only a new process mends.
        """
        try:
            return await self._write(await self._handler.handle(record, self._send), "done")
        except (Transient, StoreError, BusError) as error:
            delay_s = self._delay_s(error, attempts)
            if delay_s is not None:
                logger.info("record_postponed", extra={"error": str(error), "delay_s": delay_s})
                return Again(delay_s)
            return await self._give_up(record, error, attempts)
        except Exception as error:
            return await self._give_up(record, error, attempts)

    def _delay_s(self, error: Exception, attempts: int) -> float | None:
        if isinstance(error, BusError) and not error.retriable:
            return None
        deadline_ms = getattr(error, "deadline_ms", None)
        return self._policy.delay_s(
            attempts,
            jitter=random.random(),
            retry_after_s=getattr(error, "retry_after_s", None),
            remaining_s=None if deadline_ms is None else deadline_ms / 1000 - time.time(),
        )

    async def _give_up(self, record: Record, error: Exception, attempts: int) -> Done:
        """Tried until it works: a record must not end in a log line only."""
        trace = None if isinstance(error, DecodeError | Transient) else error
        logger.warning("record_given_up", extra={"error": repr(error)}, exc_info=trace)

        async def attempt() -> Done:
            outputs = await self._handler.give_up(record, error, attempts)
            return await self._write(outputs, "given_up")

        return await self._until_it_works(attempt, "giving_up_failed", is_final=_is_broken)

    async def _write(self, outputs: Sequence[Outgoing], outcome: str) -> Done:
        if len(outputs) == 1:
            await self._send(outputs[0])
        else:
            await self._send_all(outputs)
        return Done(outcome, sum(map(record_bytes, outputs)))

    async def _send_all(self, outputs: Sequence[Outgoing]) -> None:
        sends = (self._send(output) for output in outputs)
        for result in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _send(self, output: Outgoing) -> None:
        """Handled work is not done twice because a broker is away for a while."""

        async def attempt() -> None:
            await self._bus.send(output)

        await self._until_it_works(attempt, "send_failed", is_final=_is_refused)

    async def _until_it_works(
        self,
        attempt: Callable[[], Awaitable[_T]],
        event: str,
        *,
        is_final: Callable[[Exception, int], bool],
    ) -> _T:
        failures = 0
        while True:
            try:
                return await attempt()
            except Exception as error:
                failures += 1
                if is_final(error, failures):
                    raise
                logger.warning(event, extra={"error": repr(error), "failures": failures})
            await asyncio.sleep(self._policy.backoff_s(failures, jitter=random.random()))


def _is_refused(error: Exception, failures: int) -> bool:
    """Of one output: another try would end alike."""
    return not isinstance(error, BusError) or not error.retriable


def _is_broken(error: Exception, failures: int) -> bool:
    """Of giving up: only where the bus keeps refusing is there nothing left to do here."""
    return failures >= _MAX_REFUSALS and isinstance(error, BusError) and not error.retriable
