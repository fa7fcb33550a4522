"""The consume loop, once for every role: take, handle, acknowledge, commit, rebalance, stop.

At least once: an offset is committed only after the outputs of everything before it are
acknowledged. Acts only; what it does is decided in `offsets`, `backlog`, `flow` and `retry`. Knows
no stage and no broker.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Sequence
from functools import partial

from runtime import flow
from runtime.aborts import Aborts
from runtime.backlog import Backlog, Work
from runtime.bus import Bus, Outgoing, Record, TopicPartition
from runtime.committer import Committer
from runtime.errors import BusError
from runtime.execution import Again, Done, Emit, Execution, Handler
from runtime.flow import Limits, Load
from runtime.reporting import bind_record, report
from runtime.retry import RetryPolicy
from runtime.telemetry import RoleTelemetry, Telemetry
from schemas.errors import DecodeError

logger = logging.getLogger(__name__)

_POLL_S = 0.5
# Without room for so long the partitions are paused and polling goes on, or the group misses us.
_FULL_S = 1.0
_BUS_AWAY_S = 0.5
_MIN_LEAVE_S = 2.0
# Of the time to stop in; the rest is for the last commit and for leaving.
_WORK_SHARE = 0.8
_ABORTED = Done("aborted", 0)


class ConsumeLoop:
    """One member of one group. `start`, then `run` until `stop`, each once."""

    def __init__(
        self,
        bus: Bus,
        topics: Sequence[str],
        *,
        group: str,
        handler: Handler,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        telemetry: RoleTelemetry | None = None,
        commit_interval_s: float = 0.05,
        aborts: Aborts | None = None,
    ) -> None:
        """`aborts`: keys of records that are not worth handling any more."""
        self._group = group
        self._limits = limits or Limits()
        self._telemetry = telemetry or Telemetry().role(group)
        self._consumer = bus.consumer(topics, group=group, listener=self)
        self._committer = Committer(
            self._consumer,
            self._telemetry,
            interval_s=commit_interval_s,
            on_commit=self._apply_pauses,
        )
        self._execution = Execution(bus, _OfReadable(handler), retry or RetryPolicy())
        self._backlog = Backlog()
        self._tasks: dict[Work, asyncio.Task[Done | Again]] = {}
        self._timers: dict[Work, asyncio.TimerHandle] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._has_room = asyncio.Event()
        self._routines: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None
        self._is_rebalancing = False
        self._is_stopping = False
        self._seen_alive = time.monotonic()
        self._look_ahead_at = 0.0
        self.aborts = aborts or Aborts()
        self.aborts.watch(self._abort)
        self._aborted: set[Work] = set()

    # Called by the owner.

    async def start(self) -> None:
        """Return once the group has given us our partitions."""
        self._ended = asyncio.get_running_loop().create_future()
        await self._consumer.start()
        for routine in (self._take_records, self._committer.commit_regularly):
            task = asyncio.create_task(routine(), name=f"{self._group}: {routine.__name__}")
            task.add_done_callback(self._routine_ended)
            self._routines.append(task)

    async def run(self) -> None:
        """Return after `stop`. Raise what a background routine died of."""
        assert self._ended is not None, "start comes first"
        await asyncio.shield(self._ended)

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Take no more, finish what runs or hand it back, commit, leave. Safe to call twice."""
        if self._is_stopping:
            return
        self._is_stopping = True
        give_up_at = time.monotonic() + timeout_s
        await _cancel(self._routines)
        for timer in self._timers.values():
            timer.cancel()
        await self._finish_or_cancel(timeout_s * _WORK_SHARE)
        await self._committer.commit_now()
        await self._leave(max(give_up_at - time.monotonic(), _MIN_LEAVE_S))
        if self._ended and not self._ended.done():
            self._ended.set_result(None)

    def is_assigned(self) -> bool:
        """Whether the group has settled with us in it; for readiness."""
        return bool(self._routines) and not (self._is_rebalancing or self._is_stopping)

    def idle_s(self) -> float:
        """Since the take routine last went round; for liveness. Below a second when all is well."""
        return time.monotonic() - self._seen_alive

    @property
    def in_flight(self) -> int:
        """Records being handled now."""
        return self._backlog.running

    # Called by the consumer, around every rebalance.

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Most will come back: work goes on, only new records and commits wait."""
        logger.info("partitions_revoked", extra={"group": self._group, "count": len(partitions)})
        self._is_rebalancing = True
        self._committer.is_held = True
        await self._committer.commit_now()

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with what was ours and still is; cancel what another member does again."""
        logger.info("partitions_assigned", extra={"group": self._group, "count": len(partitions)})
        self._forget(self._committer.assign(partitions))
        self._is_rebalancing = False
        self._paused = frozenset()  # the bus has forgotten ours
        self._apply_pauses()
        self._dispatch()

    def _forget(self, lost: set[TopicPartition]) -> None:
        self._backlog.drop(lost)
        for work, task in self._tasks.items():
            if work.record.source in lost:
                task.cancel()
        for work in [work for work in self._timers if work.record.source in lost]:
            self._timers.pop(work).cancel()
        self._has_room.set()

    # Taking.

    async def _take_records(self) -> None:
        while True:
            load = self._load()
            count = flow.room(load, self._limits)
            if count == 0:
                await self._wait_for_room()
                continue
            self._pause(flow.paused(load, self._limits))
            for record in await self._poll(count, _POLL_S):
                self._accept(record)
            self._look_ahead()
            self._dispatch()
            self._seen_alive = time.monotonic()

    async def _wait_for_room(self) -> None:
        """Pausing costs what was fetched ahead, so it is done only where the wait is long."""
        self._has_room.clear()
        try:
            async with asyncio.timeout(_FULL_S):
                await self._has_room.wait()
        except TimeoutError:
            self._apply_pauses()
            for record in await self._poll(1, 0.0):  # of a partition that has just come to us
                self._accept(record)
        self._seen_alive = time.monotonic()

    async def _poll(self, count: int, timeout_s: float) -> Sequence[Record]:
        try:
            return await self._consumer.poll(max_records=count, timeout_s=timeout_s)
        except BusError as error:
            if not error.retriable:
                raise
            logger.warning("poll_failed", extra={"group": self._group, "error": repr(error)})
            await asyncio.sleep(_BUS_AWAY_S)
            return []

    def _accept(self, record: Record) -> None:
        tracker = self._committer.tracker(record.source)
        if tracker and tracker.take(record.offset):
            if record.unreadable:
                self._telemetry.unreadable(record.source)
            self._backlog.add(Work(record, tracker, taken_ms=time.time() * 1000))

    def _look_ahead(self) -> None:
        """Past what is no record, once in a while: at the end of a partition nothing else tells."""
        if self._is_rebalancing or time.monotonic() < self._look_ahead_at:
            return
        self._look_ahead_at = time.monotonic() + _POLL_S
        self._committer.advance()

    def _apply_pauses(self) -> None:
        self._pause(flow.paused(self._load(), self._limits))

    def _pause(self, wanted: frozenset[TopicPartition]) -> None:
        if self._is_rebalancing or self._is_stopping:
            return
        if wanted != self._paused:
            self._consumer.pause(sorted(wanted - self._paused))
            self._consumer.resume(sorted(self._paused - wanted))
            self._paused = wanted

    def _load(self) -> Load:
        return Load(
            records=self._backlog.running + self._backlog.ready,
            bytes=self._backlog.bytes,
            distances=self._committer.distances(),
        )

    # Handling.

    def _dispatch(self) -> None:
        while not (self._is_rebalancing or self._is_stopping):
            if self._backlog.running >= self._limits.records:
                return
            work = self._backlog.start()
            if work is None:
                return
            self._start(work)

    def _start(self, work: Work) -> None:
        if self.aborts.has(work.record.key):
            self._backlog.finish(work)
            self._finish(work)
            report(self._telemetry, work, _ABORTED, 0.0)
            return
        work.attempts += 1
        context = contextvars.copy_context()
        context.run(bind_record, work)
        running = self._execution.run(
            work.record, work.attempts, waits=work.waits, unsent=work.unsent
        )
        task = asyncio.create_task(running, context=context)
        # By callback: a task cancelled before its first step runs none of its own code.
        task.add_done_callback(partial(self._settle, work, time.perf_counter()), context=context)
        self._tasks[work] = task

    def _settle(self, work: Work, started: float, task: asyncio.Task[Done | Again]) -> None:
        """Free the slot and let the next go on. A cancelled record returns, here or elsewhere."""
        del self._tasks[work]
        result = self._result_of(work, task)
        if isinstance(result, Again):
            self._postpone(work, result)
        else:
            self._backlog.finish(work)
        if isinstance(result, Done):
            self._finish(work)
        self._dispatch()
        self._has_room.set()
        self._telemetry.load(records=self._backlog.running, held_bytes=self._backlog.bytes)
        report(self._telemetry, work, result, time.perf_counter() - started)

    def _finish(self, work: Work) -> None:
        work.tracker.finish(work.record.offset)
        self._committer.wake()

    def _abort(self, key: bytes) -> None:
        """Stop what runs for the key; what waits for it is dropped when its turn comes."""
        for work, task in self._tasks.items():
            if work.record.key == key:
                self._aborted.add(work)
                task.cancel()
        for work in [work for work in self._timers if work.record.key == key]:
            self._timers[work].cancel()
            self._resume(work)

    def _result_of(self, work: Work, task: asyncio.Task[Done | Again]) -> Done | Again | None:
        is_aborted = work in self._aborted
        self._aborted.discard(work)
        if task.cancelled():
            return _ABORTED if is_aborted else None
        if (error := task.exception()) is None:
            return task.result()
        self._die(error, "execution")
        return None

    def _postpone(self, work: Work, again: Again) -> None:
        self._backlog.suspend(work)
        work.waits = 0 if again.uses_attempt else work.waits + 1
        work.attempts -= not again.uses_attempt
        work.unsent = again.unsent
        if not self._is_stopping:
            timer = asyncio.get_running_loop().call_later(again.delay_s, self._resume, work)
            self._timers[work] = timer

    def _resume(self, work: Work) -> None:
        del self._timers[work]
        self._backlog.resume(work)
        self._dispatch()

    # Ending.

    def _routine_ended(self, routine: asyncio.Task[None]) -> None:
        if not routine.cancelled():
            error = routine.exception() or RuntimeError("a routine ended by itself")
            self._die(error, routine.get_name())

    def _die(self, error: BaseException, name: str) -> None:
        logger.critical("routine_died", exc_info=error, extra={"routine": name})
        if self._ended and not self._ended.done():
            self._ended.set_exception(error)

    async def _finish_or_cancel(self, timeout_s: float) -> None:
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        await _cancel([task for task in tasks if not task.done()])

    async def _leave(self, timeout_s: float) -> None:
        """Where a rebalance waits for a dead member, leaving waits with it."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._consumer.stop()
        except (TimeoutError, BusError) as error:
            logger.warning("leave_failed", extra={"group": self._group, "error": repr(error)})


class _OfReadable:
    """Sets aside what could not be read; hands everything else to the role's own handler."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        return await self._handler.give_up(record, error, attempts)

    async def handle(self, record: Record, emit: Emit) -> Sequence[Outgoing]:
        if record.unreadable:
            raise DecodeError(record.unreadable)
        return await self._handler.handle(record, emit)


async def _cancel(tasks: Sequence["asyncio.Task[None] | asyncio.Task[Done | Again]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
