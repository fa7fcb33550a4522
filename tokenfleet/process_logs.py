"""What every log line of a process says about the process."""

import os

from runtime import logs
from tokenfleet.plan import Plan


def configure_logs(plan: Plan) -> None:
    server = {"server": plan.process} if plan.process else {}
    always = {"role": role_of(plan), "pid": os.getpid(), **server}
    logs.configure(plan.fleet.log_level, plan.fleet.log_format, always=always)


def role_of(plan: Plan) -> str:
    """The role, or the command that runs several in one process."""
    return plan.command.removeprefix("worker ")
