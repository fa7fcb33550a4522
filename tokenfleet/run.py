"""Runs one process of a fleet until a signal, or until a part of it dies."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from runtime import logs
from runtime.bus import open_bus
from runtime.errors import BusError, SettingsError
from runtime.health import Readiness
from runtime.lifecycle import run_services
from runtime.settings import FleetSettings
from schemas.topics import Topics
from tokenfleet.front import Front
from tokenfleet.options import environment
from tokenfleet.plan import Plan, Role
from tokenfleet.services import services_of
from tokenfleet.shared import open_shared

T = TypeVar("T")


def run(plan: Plan) -> int:
    """Exit code of the process (see `runtime.lifecycle`). SettingsError where it cannot start."""
    logs.configure(plan.fleet.log_level, plan.fleet.log_format)
    shared = open_shared(plan, environment())
    readiness = Readiness()
    front = Front(shared, readiness) if Role.INGRESS in plan.roles else None
    services = list(services_of(shared, readiness, front))
    timeout_s = plan.fleet.shutdown_timeout_s
    try:
        return run_loop(run_services(services, timeout_s=timeout_s, readiness=readiness))
    finally:
        shared.close()


def create_topics(settings: FleetSettings) -> list[str]:
    """Create the topics that are missing and return their names."""
    return run_loop(_create_topics(settings))


async def _create_topics(settings: FleetSettings) -> list[str]:
    bus = open_bus(settings.bus, settings)
    try:
        await bus.start()
        names = Topics(settings.topic_prefix).all()
        return await bus.create_topics(names, num_partitions=settings.num_partitions)
    except BusError as error:
        raise SettingsError(f"--bus {settings.bus}: {error}") from None
    finally:
        await bus.stop()


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop where it is installed: an event loop in C halves the cost of a hop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
