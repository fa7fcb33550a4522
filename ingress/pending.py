"""Requests whose answer is not complete. Knows neither the bus nor HTTP."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from schemas.envelope import Outcome
from schemas.errors import ApiError, FleetError
from schemas.records.reply import StreamPiece

MAX_PIECES = 4096
"""Of one stream, not yet taken by a client that reads slowly."""


class Replies:
    """The replies to one request, in order: pieces where it streams, then one outcome.

    Written and read on one event loop. A reader that lags too far behind gets an error.
    """

    def __init__(self) -> None:
        self._items: deque[StreamPiece | Outcome | FleetError] = deque()
        self._has_news = asyncio.Event()
        self._is_over = False

    async def next(self) -> StreamPiece | Outcome:
        """Raise the error that ended the wait; nothing comes after it, or after an outcome."""
        while not self._items:
            self._has_news.clear()
            await self._has_news.wait()
        item = self._items.popleft()
        if isinstance(item, FleetError):
            raise item
        return item

    def push(self, item: StreamPiece | Outcome | FleetError) -> bool:
        """False where the answer is complete already."""
        if self._is_over:
            return False
        if len(self._items) >= MAX_PIECES:
            item = _too_slow()
        self._is_over = not isinstance(item, StreamPiece)
        self._items.append(item)
        self._has_news.set()
        return True


class PendingReplies:
    """The replies of every waiting request. Owned by one Gateway, used on its event loop only.

    `waiting` is entered by the one who sends the request, `push` is called by the reply reader;
    whoever comes late finds nothing, so a repeated outcome is harmless.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, Replies] = {}
        self._closed: ApiError | None = None
        self.on_change: Callable[[int], None] = lambda num_waiting: None
        """Told whenever one begins or ends to wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self, error: ApiError) -> None:
        """End every wait with an error, and let nobody wait any more."""
        self._closed = error
        for replies in self._waiting.values():
            replies.push(error)

    def require_place(self) -> None:
        """ApiError 503 when all are taken."""
        if self._closed is not None:
            raise self._closed
        if len(self._waiting) >= self._limit:
            raise ApiError(
                f"The server is waiting for {self._limit} answers already; try again in a moment.",
                status=503,
                type="ServiceUnavailableError",
            )

    @contextmanager
    def waiting(self, request_id: str) -> Iterator[Replies]:
        """Hold a place until the block is left, in any way. ApiError 503 where there is none."""
        self.require_place()
        replies = self._waiting[request_id] = Replies()
        self.on_change(len(self._waiting))
        try:
            yield replies
        finally:
            del self._waiting[request_id]
            self.on_change(len(self._waiting))

    def is_waiting(self, request_id: str) -> bool:
        return request_id in self._waiting

    def push(self, request_id: str, item: StreamPiece | Outcome | FleetError) -> bool:
        """Hand over what has come; False where nobody waits for it (any more)."""
        replies = self._waiting.get(request_id)
        return replies is not None and replies.push(item)


def _too_slow() -> ApiError:
    return ApiError(
        f"The client is more than {MAX_PIECES} pieces of the stream behind.",
        status=503,
        type="ServiceUnavailableError",
    )
