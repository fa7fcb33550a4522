"""The wanted frames of a video file, in the colours and at the times they are shown.

Knows no sampling and no model; runs in a decoder process, so it imports no more than it needs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from schemas.refusals import bad_request
from workers.models.capture import Capture, TimeLimit
from workers.models.video_file import Source, opened

Frames: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Allocate = Callable[[tuple[int, ...]], Frames]

_DRIFT = 1e-3
"""Of the elapsed time: by so much a header's rate may be wrong."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of the wanted frames."""

    frames: Frames
    """[n, height, width, 3] RGB."""
    valid: list[int]
    """Where they come from."""
    is_damaged: bool
    times: Mapping[int, float]
    """Seconds at which they are shown, from the first frame of the file on, by their numbers.
    Empty where the rate is constant: number / rate says it."""


def new_array(shape: tuple[int, ...]) -> Frames:
    return np.empty(shape, np.uint8)


def read_frames(
    data: bytes,
    wanted: list[int],
    source: Source,
    limit: TimeLimit,
    *,
    recovers: bool,
    allocate: Allocate = new_array,
) -> Reading:
    """The wanted frames that decode, and which they are. Raise ApiError where none does.

    `recovers`: frames that do not decode are replaced by their next neighbours.
    """
    frames: Frames | None = None
    valid: list[int] = []
    with opened(data) as (container, stream):
        capture = Capture(container, stream, source.fps, limit)
        clock = _Clock(capture, source.fps)
        for index in _taken(capture, clock, wanted, source.total_frames, recovers=recovers):
            picture = _colours(capture.frame)
            if frames is None:
                frames = allocate((len(wanted), *picture.shape))
            if picture.shape != frames.shape[1:]:
                raise bad_request("the size of this video's frames changes within the file")
            frames[len(valid)] = picture
            valid.append(index)
        is_damaged = capture.is_damaged
    if frames is None:
        raise bad_request("Failed to load video: none of its frames can be decoded")
    return Reading(frames[: len(valid)], valid, is_damaged, clock.times_of(valid))


class _Clock:
    """Notes when frames are shown, and whether that is at a constant rate."""

    def __init__(self, capture: Capture, rate: float) -> None:
        self._capture = capture
        self._rate = rate
        self._start: float | None = None
        self._times: dict[int, float] = {}
        self._is_constant = True

    def note(self, index: int, *, is_kept: bool) -> None:
        """The frame that was just grabbed."""
        moment = self._capture.seconds()
        if moment is None or self._rate <= 0:
            return
        told = index / self._rate
        if self._start is None:
            self._start = moment - told
        time = moment - self._start
        if abs(time - told) > 0.5 / self._rate + _DRIFT * told:
            self._is_constant = False
        if is_kept:
            self._times[index] = time

    def times_of(self, indices: Sequence[int]) -> dict[int, float]:
        """Of those frames that tell; empty at a constant rate."""
        if self._is_constant:
            return {}
        return {index: self._times[index] for index in indices if index in self._times}


def _taken(
    capture: Capture, clock: _Clock, wanted: Sequence[int], total: int, *, recovers: bool
) -> Iterator[int]:
    """Stops at each wanted frame that decodes. `recovers`: the next frame that does, short of the
    next wanted one, stands in for one that does not."""
    targets = set(wanted)
    next_wanted = dict(zip(wanted, [*wanted[1:], total], strict=True))
    lost: deque[int] = deque()
    for index in range(wanted[-1] + 1):
        if not capture.grab():
            if capture.is_over:
                return  # a header may claim years
            if index in targets:
                lost.append(index)
            continue
        stands_in = recovers and bool(lost) and index < next_wanted[lost[0]]
        if stands_in:
            lost.popleft()
        is_kept = stands_in or index in targets
        clock.note(index, is_kept=is_kept)
        if is_kept:
            yield index


def _colours(frame: Any) -> Any:
    """RGB as OpenCV converts: bicubic to BGR, the file's own colour space, turned upright."""
    bgr = frame.to_ndarray(format="bgr24", interpolation="BICUBIC")
    turns = -round(frame.rotation / 90) % 4
    upright = np.rot90(bgr, -turns) if turns else bgr
    return upright[..., ::-1]
