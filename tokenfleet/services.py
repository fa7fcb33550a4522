"""The services of one process of a fleet, in the order in which they start."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.aborts import AbortReader, Aborts
from runtime.errors import SettingsError, StoreError
from runtime.execution import Handler
from runtime.flow import Limits
from runtime.health import Check, HealthServer, Readiness
from runtime.lifecycle import Service
from runtime.loop import ConsumeLoop
from runtime.retry import RetryPolicy
from runtime.stage import Stage
from runtime.stage_handler import StageHandler
from runtime.storage.sharing import SharedStore, store_id
from runtime.watchdog import Watchdog
from schemas.routes import Stop
from tokenfleet.plan import Role
from tokenfleet.roles import build_coordinator, build_other_stages, build_render
from tokenfleet.shared import Shared
from tokenfleet.sweeping import Sweeper

if TYPE_CHECKING:
    from tokenfleet.front import Front

# A loop goes round every second even when it has nothing to do or no room.
_STUCK_S = 60.0


def services_of(shared: Shared, readiness: Readiness, front: "Front | None") -> Iterator[Service]:
    """`front` is the process's HTTP front; without one, probes have a port of their own."""
    roles = shared.plan.roles
    liveness: list[Check] = []
    if front is None:
        yield _health(shared, readiness, liveness)
    yield Service("bus", lambda: _open_bus(shared), lambda _: _close_bus(shared))
    yield _store(shared, readiness)
    yield _routine("watchdog", Watchdog(shared.telemetry).run)
    yield _routine("sweeper", Sweeper(shared.blobs, shared.plan.fleet.store_max_age_s).run)
    aborts = Aborts()
    reader = AbortReader(shared.bus, shared.topics, aborts)
    yield Service("aborts", reader.start, lambda _: reader.stop(), reader.run)
    stages: list[Stage] = []
    tokenizer = None
    if Role.RENDER in roles:
        render = build_render(shared)
        stages.append(render.stage)
        tokenizer = render.tokenizer
        if (media := render.media) is not None:
            yield Service("media", media.start, lambda _: media.close())
    for stage in [*stages, *build_other_stages(shared, tokenizer)]:
        yield _stage(stage, readiness)
        source = shared.topics.of(stage.stop)
        loop = _Loop(shared, stage.stop.value, [source], _handler_of(stage, shared), aborts)
        liveness.append(loop.is_stuck)
        yield loop.service(readiness)
    if Role.COORDINATOR in roles:
        topics = shared.topics
        sources = [topics.requests, topics.admissions, topics.of(Stop.COORDINATE)]
        loop = _Loop(shared, "coordinator", sources, lambda: build_coordinator(shared), aborts)
        liveness.append(loop.is_stuck)
        yield loop.service(readiness)
    if front is not None:
        yield from front.services()


class _Loop:
    """A consume loop, built when the bus is open: a coordinator must know the cluster's id."""

    def __init__(
        self,
        shared: Shared,
        role: str,
        topics: list[str],
        make_handler: Callable[[], Handler],
        aborts: Aborts,
    ) -> None:
        """`topics`: those that are read."""
        self._shared = shared
        self._role = role
        self._topics = topics
        self._make_handler = make_handler
        self._aborts = aborts
        self._loop: ConsumeLoop | None = None

    def service(self, readiness: Readiness) -> Service:
        readiness.require_true(self._is_assigned, f"{self._role}: no partitions assigned yet")
        return Service(f"{self._role} loop", self._start, self._stop, self._run)

    def is_stuck(self) -> str | None:
        """For liveness."""
        idle_s = 0.0 if self._loop is None else self._loop.idle_s()
        return f"{self._role}: took no records for {idle_s:.0f} s" if idle_s > _STUCK_S else None

    def _is_assigned(self) -> bool:
        return self._loop is not None and self._loop.is_assigned()

    async def _start(self) -> None:
        fleet = self._shared.plan.fleet
        self._loop = ConsumeLoop(
            self._shared.bus,
            self._topics,
            group=fleet.topic_prefix + self._role,
            handler=self._make_handler(),
            limits=self._limits(),
            retry=RetryPolicy(max_attempts=fleet.max_attempts),
            telemetry=self._shared.telemetry.role(self._role),
            aborts=self._aborts,
        )
        await self._loop.start()

    def _limits(self) -> Limits:
        """Most requests that render has in hand wait for other servers: they hold no thread."""
        plan = self._shared.plan
        most = Limits(records=plan.fleet.max_in_flight, bytes=plan.fleet.max_in_flight_bytes)
        if self._role != Stop.RENDER:
            return most
        waiting = plan.render.max_waiting_media
        return replace(most, records=most.records + waiting, distance=most.distance + 10 * waiting)

    async def _stop(self, timeout_s: float) -> None:
        if self._loop is not None:
            await self._loop.stop(timeout_s)

    async def _run(self) -> None:
        assert self._loop is not None, "started before it runs"
        await self._loop.run()


def _handler_of(stage: Stage, shared: Shared) -> Callable[[], Handler]:
    return lambda: StageHandler(stage, shared.delivery)


def _stage(stage: Stage, readiness: Readiness) -> Service:
    warm: list[Stage] = []

    async def start() -> None:
        await stage.start()
        warm.append(stage)

    async def stop(_: float) -> None:
        warm.clear()
        await stage.close()

    readiness.require_true(lambda: bool(warm), f"{stage.stop}: the model is not loaded yet")
    return Service(stage.stop.value, start, stop)


def _health(shared: Shared, readiness: Readiness, liveness: list[Check]) -> Service:
    server = HealthServer(
        shared.plan.health,
        readiness=readiness,
        telemetry=shared.telemetry,
        liveness=liveness,
        default_port=shared.plan.health_port,
    )
    return Service("health", server.start, lambda _: server.stop())


def _store(shared: Shared, readiness: Readiness) -> Service:
    """Written to and read from once, and compared with that of the other processes."""
    proof = None
    if not shared.plan.is_alone:
        proof = SharedStore(shared.bus, shared.topics, shared.blobs)
        readiness.require(proof.reason)

    async def start() -> None:
        try:
            await (proof.prove() if proof else store_id(shared.blobs))
        except StoreError as error:
            url = shared.plan.fleet.store
            raise SettingsError(f"--store {url!r} cannot be used: {error}") from None

    return Service("store", start, _nothing)


def _routine(name: str, run: Callable[[], Awaitable[None]]) -> Service:
    """Something that only runs in the background."""
    return Service(name, _nothing, _nothing, run)


async def _nothing(*_: float) -> None:
    return None


async def _open_bus(shared: Shared) -> None:
    await shared.bus.start()
    num_partitions = shared.plan.fleet.num_partitions
    await shared.bus.create_topics(shared.topics.all(), num_partitions=num_partitions)


async def _close_bus(shared: Shared) -> None:
    await shared.bus.stop()
    shared.close()
