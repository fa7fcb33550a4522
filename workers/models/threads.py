"""The worker threads of render's media side: one picture each, on as many cores as there are."""

import os
from concurrent.futures import ThreadPoolExecutor


def start_threads(count: int | None) -> ThreadPoolExecutor:
    """As many as asked for, else as this process may use cores. Decoding releases the lock."""
    cores = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(count or cores, "media", initializer=_prepare)


def _prepare() -> None:
    from workers.models import pixels

    pixels.use_one_thread()


def warm() -> None:
    """torch takes its time for the first call."""
    from workers.models import pixels

    pixels.warm()
