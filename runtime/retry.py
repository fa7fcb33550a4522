"""Decides whether and when a record is tried again. Data in, data out: no clock, no sleeping."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, within a number of tries and a deadline."""

    max_attempts: int = 3
    """Tries of one record, the first included."""
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0

    def delay_s(
        self,
        attempts: int,
        *,
        jitter: float,
        retry_after_s: float | None = None,
        remaining_s: float | None = None,
        is_counted: bool = True,
    ) -> float | None:
        """Seconds to wait after so many failed tries; None: no further try.

        `jitter` is a random number in [0, 1). A deadline shortens the wait, never the tries: at
        the deadline the handler is asked once more, and answers that it is too late. Tries that
        are not counted end with it only.
        """
        if is_counted and attempts >= self.max_attempts:
            return None
        delay = max(self.backoff_s(attempts, jitter=jitter), retry_after_s or 0.0)
        return delay if remaining_s is None else min(delay, max(remaining_s, 0.0))

    def backoff_s(self, attempts: int, *, jitter: float) -> float:
        """The wait alone, for what is tried until it works."""
        # Bounded exponent: a float overflows after a thousand doublings.
        full = min(self.first_delay_s * 2.0 ** min(attempts - 1, 64), self.max_delay_s)
        return full * (0.5 + jitter / 2)
