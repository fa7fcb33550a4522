"""How many processor cores there are for this process."""

import os


def num_cores() -> int:
    """Those it may use; where the system does not tell (macOS), those that there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
