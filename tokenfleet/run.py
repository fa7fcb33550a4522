"""Runs one process of a fleet until a signal, or until a part of it dies."""

from runtime import logs
from runtime.health import Readiness
from runtime.lifecycle import run_services
from tokenfleet.event_loop import run_loop
from tokenfleet.lifeline import Lifeline
from tokenfleet.options import environment
from tokenfleet.plan import Plan
from tokenfleet.roles import build_front
from tokenfleet.services import services_of
from tokenfleet.shared import open_shared


def run(plan: Plan, parent: Lifeline | None = None) -> int:
    """Exit code of the process (see `runtime.lifecycle`). SettingsError where it cannot start.

    `parent`: whom one of several server processes obeys instead of signals.
    """
    always = {"server": plan.process} if plan.process else {}
    logs.configure(plan.fleet.log_level, plan.fleet.log_format, always=always)
    shared = open_shared(plan, environment())
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
