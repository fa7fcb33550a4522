"""Decides whether and when a record is tried again. Data in, data out: no clock, no sleeping."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, within a number of tries and a deadline."""

    max_attempts: int = 3
    """Tries of one record, the first included."""
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    max_wait_s: float = 2.0
    """Longest pause while store or broker are away: how late their return is noticed."""

    def delay_s(
        self,
        attempts: int,
        *,
        jitter: float,
        retry_after_s: float | None = None,
        remaining_s: float | None = None,
    ) -> float | None:
        """Seconds to wait after so many failed tries; None: no further try.

        `jitter` is a random number in [0, 1). A deadline shortens the wait, never the tries: at
        the deadline the handler is asked once more, and answers that it is too late.
        """
        if attempts >= self.max_attempts:
            return None
        delay = max(self.backoff_s(attempts, jitter=jitter), retry_after_s or 0.0)
        return delay if remaining_s is None else min(delay, max(remaining_s, 0.0))

    def wait_s(self, waits: int, *, jitter: float, remaining_s: float | None = None) -> float:
        """Seconds until what was away is asked for again, after so many waits.

        The deadline shortens the wait that would pass it; behind it they are as long as ever.
        """
        delay = min(self.backoff_s(waits + 1, jitter=jitter), self.max_wait_s)
        return min(delay, remaining_s) if remaining_s is not None and remaining_s > 0 else delay

    def backoff_s(self, attempts: int, *, jitter: float) -> float:
        """The wait alone, growing with the tries."""
        # Bounded exponent: a float overflows after a thousand doublings.
        full = min(self.first_delay_s * 2.0 ** min(attempts - 1, 64), self.max_delay_s)
        return full * (0.5 + jitter / 2)
