"""How many server processes there are behind a port, and what each of them gets. Pure."""

from dataclasses import replace

from tokenfleet.plan import Plan

_MOST = 8
"""Each loads the tokenizer and the tensor library for itself: memory, not cores, is short then."""
_LEAST_STORE_BYTES = 1024 * 1024
_THREADS_FOR_ONE = 4
"""Even if the processes have more of them than there are cores: where one request is all there is
to do, its pictures are worked on side by side."""
# The parent has the whole budget and waits a little longer than its children take.
_SHARE_OF_TIME = 0.9


def num_processes(plan: Plan, num_cores: int, *, spreads: bool = True) -> int:
    """As asked for; else a render server uses the cores, and everything else is one process.

    `spreads`: the kernel gives connections to all who listen on a port. Linux does; elsewhere one
    of them would get everything.
    """
    if plan.ingress.api_server_count is not None:
        return plan.ingress.api_server_count
    return min(num_cores, _MOST) if plan.mode == "render" and spreads else 1


def shares_of(plan: Plan, count: int, *, port: int, num_cores: int) -> list[Plan]:
    """The plan of each process. What is for the server as a whole is divided, rounded up."""
    fleet = plan.fleet.model_copy(
        update={
            "store_memory_bytes": max(plan.fleet.store_memory_bytes // count, _LEAST_STORE_BYTES),
            "shutdown_timeout_s": plan.fleet.shutdown_timeout_s * _SHARE_OF_TIME,
        }
    )
    ingress = plan.ingress.model_copy(
        update={
            "port": port,
            "max_pending": _divided(plan.ingress.max_pending, count),
            "max_buffered_body_bytes": max(
                _divided(plan.ingress.max_buffered_body_bytes, count), plan.ingress.max_body_bytes
            ),
        }
    )
    threads = plan.render.render_threads or max(
        _divided(num_cores, count), min(num_cores, _THREADS_FOR_ONE)
    )
    render = plan.render.model_copy(update={"render_threads": threads})
    shared = replace(plan, fleet=fleet, ingress=ingress, render=render)
    return [replace(shared, process=number) for number in range(1, count + 1)]


def _divided(amount: int, count: int) -> int:
    return -(-amount // count)
