"""Runs what a plan says in this process, or in as many server processes as it wants.

Heavy imports stay where they are needed: the parent of server processes serves nothing itself.
"""

import sys
import tempfile
from pathlib import Path

from runtime import logs
from runtime.cores import num_cores
from runtime.lifecycle import run_services
from runtime.model_dir import read_model
from tokenfleet.extras import require_extras
from tokenfleet.options import environment
from tokenfleet.plan import Plan
from tokenfleet.shares import num_processes, shares_of
from workers.models.families import describe


def start(plan: Plan) -> int:
    """Exit code of the process (see `runtime.lifecycle`). SettingsError where it cannot start."""
    # Refused once, and before anything is started.
    media = describe(read_model(plan.model).path)
    require_extras(plan.command, plan.roles, takes_media=bool(media.modalities))
    cores = num_cores()
    count = num_processes(plan, cores, spreads=sys.platform == "linux")
    if count > 1:
        return _run_several(plan, count, cores)
    from tokenfleet.run import run

    return run(plan)


def _run_several(plan: Plan, count: int, cores: int) -> int:
    from ingress.server import reserve
    from tokenfleet.event_loop import run_loop
    from tokenfleet.processes import Processes

    logs.configure(plan.fleet.log_level, plan.fleet.log_format)
    with (
        reserve(plan.ingress.host, plan.ingress.port) as address,
        tempfile.TemporaryDirectory(
            prefix="tokenfleet-metrics-", ignore_cleanup_errors=True
        ) as metrics,
    ):
        port = address.getsockname()[1]
        plans = shares_of(plan, count, port=port, num_cores=cores)
        processes = Processes(plans, Path(metrics), environment()).service()
        return run_loop(run_services([processes], timeout_s=plan.fleet.shutdown_timeout_s))
