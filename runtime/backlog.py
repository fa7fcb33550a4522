"""The records in a loop's hands, and which of them may be handled next.

Records of one partition with the same key take turns; all others are free. Knows no tasks, no time.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from runtime.bus import Record, TopicPartition, record_bytes
from runtime.execution import Unsent
from runtime.offsets import OffsetTracker

Lane = tuple[TopicPartition, bytes | int]


@dataclass(slots=True, eq=False)
class Work:
    """One record from the moment it is taken; owned by the loop."""

    record: Record
    tracker: OffsetTracker
    taken_ms: float
    """Unix milliseconds."""
    attempts: int = 0
    waits: int = 0
    """Tries since the last that used up an attempt."""
    unsent: Unsent | None = None
    """What is left of it where its work is done."""
    size: int = field(init=False)
    """Bytes it holds."""

    def __post_init__(self) -> None:
        self.size = record_bytes(self.record)

    @property
    def lane(self) -> Lane:
        # Without a key there is no order to keep: a lane of its own.
        key = self.record.offset if self.record.key is None else self.record.key
        return self.record.source, key


class Backlog:
    """Work is ready, running, waiting (for a retry) or behind another of its key."""

    def __init__(self) -> None:
        self.running = 0
        self.bytes = 0
        self._lanes: dict[Lane, deque[Work]] = {}
        self._ready: deque[Work] = deque()

    @property
    def ready(self) -> int:
        return len(self._ready)

    def add(self, work: Work) -> None:
        lane = self._lanes.setdefault(work.lane, deque())
        lane.append(work)
        self.bytes += work.size
        if len(lane) == 1:
            self._ready.append(work)

    def start(self) -> Work | None:
        """The next to handle; it runs from now on."""
        if not self._ready:
            return None
        self.running += 1
        return self._ready.popleft()

    def suspend(self, work: Work) -> None:
        """Running work waits, its slot free, its key still taken."""
        self.running -= 1

    def resume(self, work: Work) -> None:
        """Waiting work is ready again, before anything that came later."""
        if self._is_held(work):
            self._ready.appendleft(work)

    def finish(self, work: Work) -> None:
        """Running work is over; the next of its key is ready."""
        self.running -= 1
        if not self._is_held(work):
            return
        lane = self._lanes[work.lane]
        lane.popleft()
        self.bytes -= work.size
        if lane:
            self._ready.append(lane[0])
        else:
            del self._lanes[work.lane]

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget everything of these partitions. Running work still has to be finished."""
        for lane in [lane for lane in self._lanes if lane[0] in partitions]:
            self.bytes -= sum(work.size for work in self._lanes.pop(lane))
        self._ready = deque(w for w in self._ready if w.record.source not in partitions)

    def _is_held(self, work: Work) -> bool:
        lane = self._lanes.get(work.lane)
        return lane is not None and lane[0] is work
