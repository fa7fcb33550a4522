"""Video files become sampled frames, the very ones and the very bytes vLLM's decoder gives.

vLLM reads videos through OpenCV; PyAV is the same FFmpeg, and the conversion to colours below is
the one OpenCV asks for. Knows no model: which frames to take is asked of a function.
"""

import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import av
import numpy as np
from av.error import FFmpegError

from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models.families import options as opt
from workers.models.images import Picture
from workers.models.limits import Budget, MediaLimits

# Containers of one file. Playlists and manifests (HLS, DASH, concat, SDP …) would make FFmpeg fetch
# what they name.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,gif,apng,"
    "h264,hevc,m4v,av1,obu,dv,mjpeg,rm,nut,mxf,wtv,webp_anim,y4m,yuv4mpegpipe"
)
_OPEN_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
BACKEND = "opencv"
_TIMELINE_SLACK = 1
"""A header may be off by one frame without being corrected."""


Frames: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


@dataclass(frozen=True, slots=True)
class Source:
    """The file before sampling."""

    width: int
    height: int
    """As stored; frames may be turned."""
    total_frames: int
    fps: float

    @property
    def duration(self) -> float:
        return self.total_frames / self.fps if self.fps > 0 else 0


@dataclass(frozen=True, slots=True)
class Video:
    """Sampled frames and where they come from."""

    frames: Frames
    """[n, height, width, 3] RGB."""
    metadata: Mapping[str, Any]
    """vLLM's keys, in the order in which they are hashed (02 §2.2)."""


Sampler = Callable[[Source], list[int]]


def decode(data: bytes, sample: Sampler, limits: MediaLimits, budget: Budget) -> Video:
    """Raise ApiError where the file is no video, is broken, or has more pixels than allowed."""
    source = read_source(data, limits)
    wanted = sorted(set(sample(source)))
    budget.charge(len(wanted) * source.height * source.width * 3)
    frames, valid = _read(data, wanted, limits)
    return Video(frames, _metadata(source, valid))


def read_source(data: bytes, limits: MediaLimits) -> Source:
    """What container and index tell, without decoding a frame."""
    with _opened(data) as (container, stream):
        width, height = stream.codec_context.width, stream.codec_context.height
        _check_pixels(width, height, limits)
        return Source(width, height, _counted(container, stream), _frame_rate(stream))


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


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[Any, Any]]:
    """Container and its video stream; FFmpeg's complaints in the caller's terms."""
    try:
        container = av.open(io.BytesIO(data), options=_OPEN_OPTIONS)
    except (FFmpegError, ValueError, OSError) as error:
        raise bad_request("Could not open video stream") from error
    with container:
        if not container.streams.video:
            raise bad_request("Could not open video stream: the file has no video")
        try:
            yield container, container.streams.video[0]
        except ApiError:
            raise
        except (FFmpegError, ValueError, OSError) as error:
            raise bad_request(f"Failed to load video: {error}") from error


def _check_pixels(width: int, height: int, limits: MediaLimits) -> None:
    if width <= 0 or height <= 0:
        raise bad_request("Could not open video stream: its frame size is unknown")
    if 0 < limits.max_image_pixels < width * height:
        raise bad_request(
            f"Video frame dimensions {width}x{height} ({width * height} pixels) exceed the maximum"
            f" of {limits.max_image_pixels} pixels (VLLM_MAX_IMAGE_PIXELS)."
        )


def _frame_rate(stream: Any) -> float:
    """Average; for streams that tell none, OpenCV takes ticks for frames."""
    if stream.average_rate:
        return _quotient(stream.average_rate)
    return _quotient(1 / stream.time_base) if stream.time_base else 0.0


def _quotient(value: Any) -> float:
    return float(value.numerator / value.denominator)


def _counted(container: Any, stream: Any) -> int:
    """Frames that are shown. A header also counts those that an edit list hides or that are cut
    off, so it is held against the timeline of the packets."""
    total = int(stream.frames) or _by_duration(container, stream)
    packets, shown = _shown(container, stream)
    if total > 0:
        return shown if 0 < shown < total - _TIMELINE_SLACK else total
    if packets == 0:
        raise bad_request("Could not determine the number of video frames")
    return packets


def _by_duration(container: Any, stream: Any) -> int:
    seconds = (container.duration or 0) / av.time_base
    if seconds <= 0 and stream.duration:
        seconds = float(stream.duration * stream.time_base)
    return math.floor(seconds * _frame_rate(stream) + 0.5)


def _shown(container: Any, stream: Any) -> tuple[int, int]:
    """Packets to be shown, and frames up to the last of them by its time."""
    count, last = 0, None
    for packet in container.demux(stream):
        if packet.size == 0 or packet.is_discard:
            continue
        count += 1
        moment = packet.dts if packet.pts is None else packet.pts
        if moment is not None:
            last = moment if last is None else max(last, moment)
    if last is None:
        return count, count
    seconds = float((last - (stream.start_time or 0)) * stream.time_base)
    return count, math.floor(seconds * _frame_rate(stream) + 0.5) + 1


def _read(data: bytes, wanted: list[int], limits: MediaLimits) -> tuple[Frames, list[int]]:
    """The wanted frames that decode, and which they are."""
    frames: Frames | None = None
    valid: list[int] = []
    for index, picture in _pictures(data, wanted, limits):
        if frames is None:
            frames = np.empty((len(wanted), *picture.shape), np.uint8)
        if picture.shape != frames.shape[1:]:
            raise bad_request("the size of this video's frames changes within the file")
        frames[len(valid)] = picture
        valid.append(index)
    if frames is None:
        raise bad_request("Failed to load video: none of its frames can be decoded")
    return frames[: len(valid)], valid


def _pictures(data: bytes, wanted: list[int], limits: MediaLimits) -> Iterator[tuple[int, Any]]:
    """(index, RGB picture) for each wanted frame that decodes; the others are left out."""
    deadline = time.monotonic() + limits.max_video_decode_s
    left = set(wanted)
    with _opened(data) as (container, stream):
        for index, frame in enumerate(_frames(container, stream)):
            if index in left:
                left.discard(index)
                yield index, _colours(frame)
            if not left:
                return
            if time.monotonic() > deadline:
                raise bad_request(
                    f"the video takes longer than {limits.max_video_decode_s:g} s to decode"
                )


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """In order of presentation; packets that do not decode are passed over."""
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except FFmpegError:
            continue


def _colours(frame: Any) -> Any:
    """RGB as OpenCV converts: bicubic to BGR, the file's own colour space, turned upright."""
    bgr = frame.to_ndarray(format="bgr24", interpolation="BICUBIC")
    turns = -round(frame.rotation / 90) % 4
    upright = np.rot90(bgr, -turns) if turns else bgr
    return upright[..., ::-1]
