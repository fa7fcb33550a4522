"""Runs one process of a fleet until a signal, or until a part of it dies."""

import logging
from importlib.metadata import version

from runtime.health import Readiness
from runtime.lifecycle import run_services
from tokenfleet.event_loop import run_loop
from tokenfleet.lifeline import Lifeline
from tokenfleet.options import environment
from tokenfleet.plan import Plan
from tokenfleet.process_logs import configure_logs
from tokenfleet.roles import build_front
from tokenfleet.services import services_of
from tokenfleet.shared import Shared, open_shared

logger = logging.getLogger(__name__)


def run(plan: Plan, parent: Lifeline | None = None) -> int:
    """Exit code of the process (see `runtime.lifecycle`). SettingsError where it cannot start.

    `parent`: whom one of several server processes obeys instead of signals.
    """
    configure_logs(plan)
    shared = open_shared(plan, environment())
    _announce(shared)
    readiness = Readiness()
    front = build_front(shared, readiness)
    services = list(services_of(shared, readiness, front))
    if parent is not None:
        services.append(parent.reporting())
        readiness.require_true(
            lambda: parent.do_all_serve, "other processes of this server still start"
        )
    running = run_services(
        services,
        timeout_s=plan.fleet.shutdown_timeout_s,
        readiness=readiness,
        told_to_end=parent.told_to_end if parent else None,
    )
    try:
        return run_loop(running)
    finally:
        shared.close()


def _announce(shared: Shared) -> None:
    fleet = shared.plan.fleet
    logger.info(
        "starting",
        extra={
            "version": version("tokenfleet"),
            "model": shared.directory.served_names[0],
            "model_path": str(shared.directory.path),
            "bus": fleet.bus,
            "store": fleet.store,
            "topic_prefix": fleet.topic_prefix,
        },
    )
