"""The worker threads of render's media side: one picture each, on as many cores as there are."""

from concurrent.futures import ThreadPoolExecutor

from runtime.cores import num_cores


def start_threads(count: int | None) -> ThreadPoolExecutor:
    """As many as asked for, else as this process may use cores. Decoding releases the lock."""
    return ThreadPoolExecutor(count or num_cores(), "media", initializer=prepare)


def prepare() -> None:
    from workers.models import pixels

    pixels.use_one_thread()


def warm() -> None:
    """torch takes its time for the first call."""
    from workers.models import pixels

    pixels.warm()
