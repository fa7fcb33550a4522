"""Video files become sampled frames, the very ones and the very bytes vLLM's decoder gives.

vLLM reads videos through OpenCV; PyAV is the same FFmpeg, and the conversion to colours below is
the one OpenCV asks for. Knows no model: which frames to take is asked of a function.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from schemas.refusals import bad_request
from workers.models.capture import Capture, TimeLimit
from workers.models.families import options as opt
from workers.models.images import Picture
from workers.models.limits import Budget, MediaLimits
from workers.models.video_file import Source, opened, read_source, recounted

BACKEND = "opencv"
Frames: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


@dataclass(frozen=True, slots=True)
class Video:
    """Sampled frames and where they come from."""

    frames: Frames
    """[n, height, width, 3] RGB."""
    metadata: Mapping[str, Any]
    """vLLM's keys, in the order in which they are hashed (02 §2.2)."""


Sampler = Callable[[Source], list[int]]


def decode(
    data: bytes, sample: Sampler, limits: MediaLimits, budget: Budget, *, recovers: bool = False
) -> Video:
    """Raise ApiError where the file is no video, is broken, or has more pixels than allowed.

    `recovers`: frames that do not decode are replaced by their next neighbours.
    """
    source, limit = read_source(data, limits), TimeLimit(limits.max_video_decode_s)
    if source.is_cut:
        source = recounted(data, source, limit)
    wanted = sorted(set(sample(source)))
    budget.charge(len(wanted) * source.height * source.width * 3)
    reading = _read(data, wanted, source, limit, recovers=recovers)
    if reading.is_damaged and not source.is_cut:
        shorter = recounted(data, source, limit)
        if shorter != source:
            source, wanted = shorter, sorted(set(sample(shorter)))
            reading = _read(data, wanted, source, limit, recovers=recovers)
    return Video(reading.frames, _metadata(source, reading.valid))


def uniform(source: Source, num_frames: int, fps: float) -> list[int]:
    """vLLM's sampling for processors without one of their own: the fewer of both wishes."""
    count = source.total_frames
    if num_frames > 0:
        count = min(num_frames, count)
    if fps > 0:
        count = min(count, math.floor(source.duration * fps))
    count = max(count, 1)
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


@dataclass(frozen=True, slots=True)
class _Reading:
    frames: Frames
    valid: list[int]
    """Where they come from."""
    is_damaged: bool


def _read(
    data: bytes, wanted: list[int], source: Source, limit: TimeLimit, *, recovers: bool
) -> _Reading:
    """The wanted frames that decode, and which they are."""
    frames: Frames | None = None
    valid: list[int] = []
    with opened(data) as (container, stream):
        capture = Capture(container, stream, source.fps, limit)
        for index in _taken(capture, wanted, source.total_frames, recovers=recovers):
            picture = _colours(capture.frame)
            if frames is None:
                frames = np.empty((len(wanted), *picture.shape), np.uint8)
            if picture.shape != frames.shape[1:]:
                raise bad_request("the size of this video's frames changes within the file")
            frames[len(valid)] = picture
            valid.append(index)
        is_damaged = capture.is_damaged
    if frames is None:
        raise bad_request("Failed to load video: none of its frames can be decoded")
    return _Reading(frames[: len(valid)], valid, is_damaged)


def _taken(capture: Capture, wanted: Sequence[int], total: int, *, recovers: bool) -> Iterator[int]:
    """Stops at each wanted frame that decodes. `recovers`: the next frame that does, short of the
    next wanted one, stands in for one that does not."""
    targets = set(wanted)
    next_wanted = dict(zip(wanted, [*wanted[1:], total], strict=True))
    lost: deque[int] = deque()
    for index in range(wanted[-1] + 1):
        if not capture.grab():
            if index in targets:
                lost.append(index)
            continue
        stands_in = recovers and bool(lost) and index < next_wanted[lost[0]]
        if stands_in:
            lost.popleft()
        if stands_in or index in targets:
            yield index


def _colours(frame: Any) -> Any:
    """RGB as OpenCV converts: bicubic to BGR, the file's own colour space, turned upright."""
    bgr = frame.to_ndarray(format="bgr24", interpolation="BICUBIC")
    turns = -round(frame.rotation / 90) % 4
    upright = np.rot90(bgr, -turns) if turns else bgr
    return upright[..., ::-1]
