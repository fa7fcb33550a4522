"""Decides which offset of a partition may be committed. Knows no bus, no tasks and no time."""


class OffsetTracker:
    """One partition's progress while it is ours: what is taken, finished, committed.

    Only the contiguous finished prefix may be committed. Gaps in the offsets count as finished.
    """

    def __init__(self) -> None:
        self.committed: int | None = None
        """Next offset to read as the bus knows it; None until a record or a commit tells."""
        self._newest = -1
        self._pending: dict[int, None] = {}  # taken and unfinished, in order
        self._is_restarted = True

    def take(self, offset: int) -> bool:
        """Note a delivery. False where the offset was taken before: a redelivery to skip."""
        if self._is_restarted:
            # Reading begins at what is committed, by us or by whoever had the partition meanwhile.
            self._is_restarted = False
            self.committed = max(offset, self.committed or 0)
            self._pending = {o: None for o in self._pending if o >= offset}
        if offset <= self._newest:
            return False
        self._newest = offset
        self._pending[offset] = None
        return True

    def advance(self, position: int) -> None:
        """Reading goes on at `position`: what lies before and was not taken is no record.

        So ends a partition in the marker of a transaction, in records of an aborted one, or where
        the oldest were deleted.
        """
        self._newest = max(self._newest, position - 1)

    def finish(self, offset: int) -> None:
        """Its outputs are acknowledged. Harmless when repeated, or no longer of interest."""
        self._pending.pop(offset, None)

    def due(self) -> int | None:
        """The offset to commit now; None where nothing is new."""
        if self._newest < 0 or self._next_offset() <= (self.committed or 0):
            return None
        return self._next_offset()

    def commit(self, offset: int) -> None:
        """The bus has taken it."""
        self.committed = max(offset, self.committed or 0)

    def restart(self) -> None:
        """The partition was assigned anew: what is not committed comes again."""
        self._is_restarted = True

    @property
    def distance(self) -> int:
        """From the committed offset to beyond the newest taken: what a crash would repeat."""
        return 0 if self.committed is None else max(self._newest + 1 - self.committed, 0)

    def _next_offset(self) -> int:
        return next(iter(self._pending), self._newest + 1)
