"""Takes one record through its handler to acknowledged outputs, or to the next try.

Knows no offsets, no partitions' owners and no slots: the loop does. Nothing here goes on without
end: what is away is waited for outside, without a slot; everything else is tried so many times.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.bus import Bus, Outgoing, Record, record_bytes
from runtime.errors import BusError, StoreError, StoreRefused, Undeliverable, is_away
from runtime.retry import RetryPolicy
from schemas.errors import Busy, DecodeError, Transient

logger = logging.getLogger(__name__)
Emit = Callable[[Outgoing], Awaitable[None]]
"""Writes a record while its handler still works; returns once it is acknowledged."""

_MAX_REFUSALS = 10
_MAX_REFUSAL_PAUSE_S = 1.0
# A hiccup of the broker is sat out where the record is; longer ones cost no slot.
_SENDS = 3
_BUSY_TRIES = 4
"""After so many the waits for one's turn grow no longer: places stay empty while nobody asks."""


class Handler(Protocol):
    """What a loop calls. Both calls may come again for the same record, and may be cancelled."""

    async def handle(self, record: Record, emit: Emit) -> Sequence[Outgoing]:
        """Return what to write. Raise Transient or Away to be called again later.

        What must go out before the work is done goes through `emit`, one record after another.
        The record's offset is committed after all of it; another call may emit the same again.
        """

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        """Return what to write instead of an outcome: poison, or attempts exhausted.

        An Undeliverable says which topic did not take an output: nothing may go there again.
        """


@dataclass(frozen=True, slots=True)
class Done:
    """The outputs are acknowledged."""

    outcome: str
    """`done`, `given_up` or `lost`: what even giving up failed at is only in the log."""
    bytes_out: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """Outputs of work that is done, which the broker could not take yet."""

    outcome: str
    outputs: Sequence[Outgoing]
    bytes_out: int = 0
    """Of those that were written."""


@dataclass(frozen=True, slots=True)
class Again:
    """To be tried again after a wait."""

    delay_s: float
    outcome: str = "postponed"
    bytes_out: int = 0
    uses_attempt: bool = True
    """No: something was away, and nothing is wrong with the record."""
    unsent: Unsent | None = None
    """All that is left to do."""


class Execution:
    """Shared by all records of a loop; keeps nothing about any of them."""

    def __init__(self, bus: Bus, handler: Handler, policy: RetryPolicy) -> None:
        self._bus = bus
        self._handler = handler
        self._policy = policy

    async def run(
        self, record: Record, attempts: int, *, waits: int = 0, unsent: Unsent | None = None
    ) -> Done | Again:
        """`attempts` counts this one; `waits` those before it that used up none.

        Raises CancelledError, and BusError where the bus refuses even what says so: a producer
        that is broken for good, which only a new process mends.
        """
        try:
            if unsent is None:
                unsent = Unsent("done", await self._handler.handle(record, self._emit))
            return await self._write(unsent, waits)
        except Exception as error:
            if again := self._again(error, attempts, waits):
                logger.info("record_postponed", extra={"error": str(error)[:1000]})
                return again
            return await self._give_up(record, error, attempts, waits)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # libraries in Rust panic with one of their own
            panic = RuntimeError(f"{type(error).__name__}: {error}")
            return await self._give_up(record, panic, attempts, waits)

    def _again(self, error: Exception, attempts: int, waits: int) -> Again | None:
        remaining_s = _remaining_s(getattr(error, "deadline_ms", None))
        if is_away(error) or isinstance(error, Busy):
            waits = min(waits, _BUSY_TRIES) if isinstance(error, Busy) else waits
            wait_s = self._policy.wait_s(waits, jitter=random.random(), remaining_s=remaining_s)
            return Again(wait_s, uses_attempt=False)
        if isinstance(error, StoreRefused) or not isinstance(error, Transient | StoreError):
            return None
        delay_s = self._policy.delay_s(
            attempts,
            jitter=random.random(),
            retry_after_s=getattr(error, "retry_after_s", None),
            remaining_s=remaining_s,
        )
        return None if delay_s is None else Again(delay_s)

    async def _give_up(
        self, record: Record, error: Exception, attempts: int, waits: int
    ) -> Done | Again:
        """Tried several times: a record must not end in a log line only."""
        trace = None if isinstance(error, DecodeError | Transient | Undeliverable) else error
        logger.warning("record_given_up", extra={"error": repr(error)[:1000]}, exc_info=trace)
        failed: Exception = error
        for failures in range(1, _MAX_REFUSALS + 1):
            try:
                outputs = await self._handler.give_up(record, error, attempts)
                return await self._write(Unsent("given_up", outputs), waits)
            except Exception as again:
                failed = again
                if is_away(failed):
                    return self._again(failed, attempts, waits) or Again(0.0)
                logger.warning("giving_up_failed", extra={"error": repr(failed)[:1000]})
                if isinstance(failed, Undeliverable):
                    error = failed
            pause_s = self._policy.backoff_s(failures, jitter=random.random())
            await asyncio.sleep(min(pause_s, _MAX_REFUSAL_PAUSE_S))
        if isinstance(failed, BusError):
            raise failed
        logger.critical("record_lost", exc_info=failed)
        return Done("lost", 0)

    async def _write(self, unsent: Unsent, waits: int) -> Done | Again:
        """Raise Undeliverable for the first output that can never be written."""
        outputs = unsent.outputs
        results = await asyncio.gather(*map(self._send, outputs), return_exceptions=True)
        left = []
        for output, result in zip(outputs, results, strict=True):
            if isinstance(result, BaseException):
                left.append(_worth_trying(output, result))
        written = sum(record_bytes(o) for o in outputs if o not in left) + unsent.bytes_out
        if not left:
            return Done(unsent.outcome, written)
        logger.warning("send_failed", extra={"error": repr(results[0])[:1000]})
        wait_s = self._policy.wait_s(waits, jitter=random.random())
        rest = Unsent(unsent.outcome, left, written)
        return Again(wait_s, uses_attempt=False, unsent=rest)

    async def _emit(self, output: Outgoing) -> None:
        """Tried as long as the broker is away: work that is under way is not begun anew for it."""
        failures = 0
        while True:
            try:
                await self._bus.send(output)
                return
            except BusError as error:
                if not is_away(error):
                    raise Undeliverable(output.topic, str(error)) from error
            failures += 1
            await asyncio.sleep(self._policy.backoff_s(failures, jitter=random.random()))

    async def _send(self, output: Outgoing) -> None:
        for failures in range(1, _SENDS + 1):
            try:
                await self._bus.send(output)
                return
            except BusError as error:
                if failures == _SENDS or not is_away(error):
                    raise
            await asyncio.sleep(self._policy.backoff_s(failures, jitter=random.random()))


def _remaining_s(deadline_ms: float | None) -> float | None:
    return None if deadline_ms is None else deadline_ms / 1000 - time.time()


def _worth_trying(output: Outgoing, error: BaseException) -> Outgoing:
    """The output, where the broker is only away; what has failed for good is raised."""
    if not isinstance(error, Exception):
        raise error
    if not is_away(error):
        raise Undeliverable(output.topic, str(error)) from error
    if output.give_up_ms is not None and output.give_up_ms < time.time() * 1000:
        raise Undeliverable(output.topic, f"not until the deadline: {error}") from error
    return output
