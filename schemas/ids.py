"""Random ids, from the system's generator in draughts: it is asked often, and each call costs."""

import os
from threading import Lock

_DRAUGHT_BYTES = 4096


class _Source:
    def __init__(self) -> None:
        self._lock = Lock()
        self.forget()

    def forget(self) -> None:
        self._drawn, self._used = b"", 0

    def take(self, count: int) -> bytes:
        with self._lock:
            if self._used + count > len(self._drawn):
                self._drawn, self._used = os.urandom(_DRAUGHT_BYTES), 0
            self._used += count
            return self._drawn[self._used - count : self._used]


_source = _Source()
os.register_at_fork(after_in_child=_source.forget)  # two processes must not give out the same


def random_id(num_digits: int = 16) -> str:
    """Lowercase hex; an even number of digits."""
    return _source.take(num_digits // 2).hex()
