"""Runs what a plan says in this process, or in as many server processes as it wants.

Heavy imports stay where they are needed: the parent of server processes serves nothing itself.
"""

import logging
import sys
import tempfile
from pathlib import Path

from runtime.addresses import url_of
from runtime.cores import num_cores
from runtime.lifecycle import Service, run_services
from runtime.model_dir import ModelDirectory, read_model
from tokenfleet.extras import require_extras
from tokenfleet.options import environment
from tokenfleet.plan import Plan
from tokenfleet.process_logs import configure_logs
from tokenfleet.shares import num_processes, shares_of
from workers.models.families import describe

logger = logging.getLogger(__name__)


def start(plan: Plan) -> int:
    """Exit code of the process (see `runtime.lifecycle`). SettingsError where it cannot start."""
    # Refused once, and before anything is started.
    directory = read_model(plan.model)
    media = describe(directory.path)
    require_extras(plan.command, plan.roles, takes_media=bool(media.modalities))
    cores = num_cores()
    count = num_processes(plan, cores, spreads=sys.platform == "linux")
    if count > 1:
        return _run_several(plan, directory, count, cores)
    from tokenfleet.run import run

    return run(plan)


def _run_several(plan: Plan, directory: ModelDirectory, count: int, cores: int) -> int:
    from ingress.server import reserve
    from tokenfleet.event_loop import run_loop
    from tokenfleet.processes import Processes

    configure_logs(plan)
    with (
        reserve(plan.ingress.host, plan.ingress.port) as address,
        tempfile.TemporaryDirectory(
            prefix="tokenfleet-metrics-", ignore_cleanup_errors=True
        ) as metrics,
    ):
        port = address.getsockname()[1]
        plans = shares_of(plan, count, port=port, num_cores=cores)
        services = [
            Processes(plans, Path(metrics), environment()).service(),
            _announcing(url_of(plan.ingress.host, port), directory.served_names[0]),
        ]
        return run_loop(run_services(services, timeout_s=plan.fleet.shutdown_timeout_s))


def _announcing(url: str, model: str) -> Service:
    """Says it once, when all of them serve."""

    async def say() -> None:
        logger.info("listening", extra={"url": url, "model": model})

    async def nothing(_: float) -> None:
        return None

    return Service("http", say, nothing)
