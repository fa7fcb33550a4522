"""Requests whose outcome has not arrived. Knows neither the bus nor HTTP."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from schemas.envelope import Outcome
from schemas.errors import ApiError, FleetError


class PendingReplies:
    """A future per waiting request. Owned by one Gateway and used on its event loop only.

    `waiting` is entered by the one who sends the request, `resolve` is called by the reply reader;
    whoever comes second finds nothing, so a repeated or late reply is harmless.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._futures: dict[str, asyncio.Future[Outcome]] = {}
        self._closed: ApiError | None = None
        self.on_change: Callable[[int], None] = lambda num_waiting: None
        """Told whenever one begins or ends to wait."""

    def __len__(self) -> int:
        return len(self._futures)

    def close(self, error: ApiError) -> None:
        """End every wait with an error, and let nobody wait any more."""
        self._closed = error
        for request_id in self._futures:
            self.fail(request_id, error)

    def require_place(self) -> None:
        """ApiError 503 when all are taken."""
        if self._closed is not None:
            raise self._closed
        if len(self._futures) >= self._limit:
            raise ApiError(
                f"The server is waiting for {self._limit} answers already; try again in a moment.",
                status=503,
                type="ServiceUnavailableError",
            )

    @contextmanager
    def waiting(self, request_id: str) -> Iterator[asyncio.Future[Outcome]]:
        """Hold a place until the block is left, in any way. ApiError 503 where there is none."""
        self.require_place()
        future = asyncio.get_running_loop().create_future()
        self._futures[request_id] = future
        self.on_change(len(self._futures))
        try:
            yield future
        finally:
            del self._futures[request_id]
            self.on_change(len(self._futures))
            future.cancel()

    def is_waiting(self, request_id: str) -> bool:
        return request_id in self._futures

    def fail(self, request_id: str, error: FleetError) -> bool:
        """End the wait with an error; False where nobody waits (any more)."""
        future = self._futures.get(request_id)
        if future is None or future.done():
            return False
        future.set_exception(error)
        return True

    def resolve(self, request_id: str, outcome: Outcome) -> bool:
        """Hand over an outcome; False where nobody waits for it (any more)."""
        future = self._futures.get(request_id)
        if future is None or future.done():
            return False
        future.set_result(outcome)
        return True
