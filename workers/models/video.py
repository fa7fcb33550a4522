"""Video files become sampled frames, the very ones and the very bytes vLLM's decoder gives.

vLLM reads videos through OpenCV; PyAV is the same FFmpeg, and the conversion to colours below is
the one OpenCV asks for. Knows no model: which frames to take is asked of a function.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from schemas.refusals import bad_request
from workers.models.capture import TimeLimit
from workers.models.families import options as opt
from workers.models.images import Picture
from workers.models.limits import Budget, MediaLimits
from workers.models.video_file import Source, read_source, recounted
from workers.models.video_frames import Frames, Reading, read_frames

BACKEND = "opencv"
_MAX_SAMPLES = 2**20
"""Numbers of frames that are listed; so many frames exceed what a request may decode."""


@dataclass(frozen=True, slots=True)
class Video:
    """Sampled frames and where they come from."""

    frames: Frames
    """[n, height, width, 3] RGB."""
    metadata: Mapping[str, Any]
    """vLLM's keys, in the order in which they are hashed (02 §2.2)."""
    times: Mapping[int, float] = field(default_factory=dict)
    """See `Reading`."""


Sampler = Callable[[Source], list[int]]


class Reader(Protocol):
    """One video file in the hands of whoever decodes it. Raises ApiError as `decode`."""

    def source(self) -> Source:
        """What the file says of itself, recounted where its header is wrong."""

    def recounted(self, source: Source) -> Source: ...

    def read(self, wanted: list[int], source: Source, *, recovers: bool) -> Reading: ...


class FileReader:
    """Decodes where it is called."""

    def __init__(self, data: bytes, limits: MediaLimits, limit: TimeLimit | None = None) -> None:
        self._data = data
        self._limits = limits
        self._limit = limit or TimeLimit(limits.max_video_decode_s)

    def source(self) -> Source:
        source = read_source(self._data, self._limits, self._limit)
        return self.recounted(source) if source.is_cut else source

    def recounted(self, source: Source) -> Source:
        return recounted(self._data, source, self._limit)

    def read(self, wanted: list[int], source: Source, *, recovers: bool) -> Reading:
        return read_frames(self._data, wanted, source, self._limit, recovers=recovers)


def decode(
    data: bytes, sample: Sampler, limits: MediaLimits, budget: Budget, *, recovers: bool = False
) -> Video:
    """Raise ApiError where the file is no video, is broken, or has more pixels than allowed.

    `recovers`: frames that do not decode are replaced by their next neighbours.
    """
    reader = FileReader(data, limits)
    source = reader.source()
    wanted = chosen(source, sample)
    budget.charge(decoded_bytes(source, wanted))
    return read(reader, source, wanted, sample, recovers=recovers)


def chosen(source: Source, sample: Sampler) -> list[int]:
    """The frames to decode, in the order of the file."""
    return sorted(set(sample(source)))


def decoded_bytes(source: Source, wanted: Sequence[int]) -> int:
    return len(wanted) * source.height * source.width * 3


def read(
    reader: Reader, source: Source, wanted: list[int], sample: Sampler, *, recovers: bool
) -> Video:
    """Decode; what is damaged is counted and sampled anew."""
    reading = reader.read(wanted, source, recovers=recovers)
    if reading.is_damaged and not source.is_cut:
        shorter = reader.recounted(source)
        if shorter != source:
            source, wanted = shorter, chosen(shorter, sample)
            reading = reader.read(wanted, source, recovers=recovers)
    return Video(reading.frames, _metadata(source, reading.valid), reading.times)


def uniform(source: Source, num_frames: int, fps: float) -> list[int]:
    """vLLM's sampling for processors without one of their own: the fewer of both wishes."""
    count = source.total_frames
    if num_frames > 0:
        count = min(num_frames, count)
    if fps > 0:
        count = min(count, math.floor(source.duration * fps))
    count = max(count, 1)
    if count > _MAX_SAMPLES:
        raise bad_request(f"the video has {count} frames, more than can be decoded")
    if count == source.total_frames:
        return list(range(count))
    indices: list[int] = np.linspace(0, source.total_frames - 1, count, dtype=int).tolist()
    return indices


def jpeg_parts(payload: str, kwargs: Mapping[str, Any]) -> list[str]:
    """The pictures of a `video/jpeg` URL that are looked at, in base64."""
    count = opt.real(kwargs.get("num_frames", 32), "num_frames")
    if count == 0:
        raise bad_request("num_frames must be greater than 0 or -1")
    parts = payload.split(",")
    return parts[: int(count)] if count > 0 else parts


def of_pictures(pictures: Sequence[Picture], kwargs: Mapping[str, Any]) -> Video:
    """Frames sent as pictures; what a container would have told stands in `kwargs`."""
    arrays = [np.asarray(picture.image) for picture in pictures]
    if any(array.shape != (*arrays[0].shape[:2], 3) for array in arrays):
        raise bad_request("the pictures of a video must be RGB and have one size")
    count, fps = len(arrays), float(opt.real(kwargs.get("fps", 1), "fps"))
    indices = kwargs.get("frames_indices", list(range(count)))
    total = kwargs.get("total_num_frames", count)
    if not isinstance(indices, list) or not all(type(i) is int for i in indices):
        raise bad_request("frames_indices must be a list of integers")
    if len(indices) != count:
        raise bad_request(f"frames_indices has {len(indices)} entries for {count} frames")
    if type(total) is not int or total < count:
        raise bad_request(f"total_num_frames must be an integer of at least {count}")
    duration = kwargs.get("duration")
    if duration is None:
        duration = total / fps if fps > 0 else 0.0
    return Video(
        np.stack(arrays),
        {
            "total_num_frames": total,
            "fps": fps,
            "duration": opt.real(duration, "duration"),
            "video_backend": "jpeg_sequence",
            "frames_indices": indices,
            "do_sample_frames": kwargs.get("do_sample_frames", False),
        },
    )


def _metadata(source: Source, valid: list[int]) -> dict[str, Any]:
    return {
        "total_num_frames": source.total_frames,
        "fps": source.fps,
        "duration": source.duration,
        "video_backend": BACKEND,
        "frames_indices": valid,
        "do_sample_frames": len(valid) == source.total_frames,
    }
