"""Goes through a video file frame by frame as OpenCV's capture does, damage included.

A packet that does not decode costs a turn: what comes behind it keeps its number. Knows no sampling
and no colours.
"""

import time
from collections import deque
from fractions import Fraction
from typing import Any

from av.error import FFmpegError

from schemas.refusals import bad_request

_FIRST_STEP = 16
"""Frames in front of a wanted one at which a seek starts to look for it."""


class TimeLimit:
    """How long one video may be decoded."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise bad_request(f"the video takes longer than {self._seconds:g} s to decode")


class Capture:
    """Of one open file; `frame` is the one that the last successful grab went to."""

    def __init__(self, container: Any, stream: Any, rate: float, limit: TimeLimit) -> None:
        self._container = container
        self._stream = stream
        self._rate = rate
        self._limit = limit
        self._packets = container.demux(stream)
        self._ready: deque[Any] = deque()
        self._first: int | None = None
        self.frame: Any = None
        self.is_damaged = False
        self.is_over = False
        """The file holds no more packets."""

    def grab(self) -> bool:
        """False where the next packet does not decode, and at the end."""
        self._limit.check()
        while not self._ready:
            self._limit.check()
            try:
                decoded = self._decoded()
            except FFmpegError:
                self.is_damaged = True
                return False
            if decoded is None:
                self.is_over = True
                return False
            self._ready.extend(decoded)
        self.frame = self._ready.popleft()
        if self._first is None:
            self._first = self._number()
        return True

    def seconds(self) -> float | None:
        """When the last grabbed frame is shown, by its file's clock; None: it does not say."""
        if self.frame is None or self.frame.pts is None or not self._stream.time_base:
            return None
        return float(self.frame.pts * self._stream.time_base)

    def _decoded(self) -> list[Any] | None:
        """What the next packet holds; None: there is none."""
        try:
            packet = next(self._packets, None)
        except FFmpegError:  # nothing can be read from here on, but the decoder still holds frames
            self.is_damaged = True
            frames: list[Any] = self._stream.codec_context.decode(None)
            return frames
        return None if packet is None else packet.decode()

    def count_shown(self, total: int) -> int:
        """The number of frames, where a header tells `total`: fewer where the last cannot be
        reached."""
        shown = self._seek(total)
        is_at_end = not self.grab()
        return shown if is_at_end and 0 < shown < total - 1 else total

    def _seek(self, number: int) -> int:
        """Go to a frame and tell where that led: from a key frame before it, as far as packets
        decode."""
        self.grab()
        step = _FIRST_STEP
        while True:
            start = max(number - step, 0)
            self._jump(start)
            is_there = self.grab()
            position = self._number() - (self._first or 0)
            if number <= 1:
                return 0
            if is_there and 0 <= position < number:
                break
            if start == 0:
                return position
            step = step * 3 // 2
        while position < number - 1 and self.grab():
            position += 1
        return position + 1

    def _jump(self, number: int) -> None:
        seconds = number / self._rate if self._rate > 0 else 0.0
        ticks = int(seconds / self._stream.time_base + Fraction(1, 2))
        start = self._stream.start_time or 0
        try:
            self._container.seek(start + ticks, stream=self._stream, backward=True)
        except FFmpegError:
            self.is_damaged = True
        self._stream.codec_context.flush_buffers()
        self._ready.clear()
        self.is_over = False
        self._packets = self._container.demux(self._stream)

    def _number(self) -> int:
        """Of the frame last grabbed, by its time."""
        if self.frame is None:
            return 0
        moment = self.frame.pts or self.frame.dts or 0
        seconds = float((moment - (self._stream.start_time or 0)) * self._stream.time_base)
        return int(self._rate * seconds + 0.5)
