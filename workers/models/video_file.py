"""A video file before it is sampled: its size, its rate, how many frames it shows.

Knows no sampling, no colours and no model.
"""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import av
from av.error import FFmpegError

from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models.capture import Capture, TimeLimit
from workers.models.limits import MediaLimits

# Containers of one file. Playlists and manifests (HLS, DASH, concat, SDP …) would make FFmpeg fetch
# what they name.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,gif,apng,"
    "h264,hevc,m4v,av1,obu,dv,mjpeg,rm,nut,mxf,wtv,webp_anim,y4m,yuv4mpegpipe"
)
_OPEN_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
_MAX_STREAMS = 64
_TIMELINE_SLACK = 1
"""A header may be off by one frame without being corrected."""


@dataclass(frozen=True, slots=True)
class Source:
    """The file before sampling."""

    width: int
    height: int
    """As stored; frames may be turned."""
    total_frames: int
    fps: float
    is_cut: bool = False
    """The header tells of more."""

    @property
    def duration(self) -> float:
        return self.total_frames / self.fps if self.fps > 0 else 0


def read_source(data: bytes, limits: MediaLimits, limit: TimeLimit) -> Source:
    """What container and index tell, without decoding a frame."""
    with opened(data) as (container, stream):
        width, height = stream.codec_context.width, stream.codec_context.height
        _check_pixels(width, height, limits)
        total, is_cut = _counted(container, stream, limit)
        return Source(width, height, total, _frame_rate(stream), is_cut)


def recounted(data: bytes, source: Source, limit: TimeLimit) -> Source:
    """OpenCV counts by going to the last frame that a header tells; damage may stop it earlier."""
    with opened(data) as (container, stream):
        told = _told(container, stream)
        if told <= 0:
            return source
        capture = Capture(container, stream, source.fps, limit)
        return replace(source, total_frames=capture.count_shown(told))


@contextmanager
def opened(data: bytes) -> Iterator[tuple[Any, Any]]:
    """Container and its video stream; FFmpeg's complaints in the caller's terms."""
    try:
        container = av.open(io.BytesIO(data), options=_OPEN_OPTIONS)
    except (FFmpegError, ValueError, OSError) as error:
        raise bad_request("Could not open video stream") from error
    with container:
        if len(container.streams) > _MAX_STREAMS:
            raise bad_request(
                f"the video has {len(container.streams)} streams, more than {_MAX_STREAMS}"
            )
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


def _counted(container: Any, stream: Any, limit: TimeLimit) -> tuple[int, bool]:
    """Frames that are shown, and whether a header tells of more: it also counts those that an edit
    list hides or that are cut off, so it is held against the timeline of the packets."""
    total = _told(container, stream)
    packets, shown = _shown(container, stream, limit)
    if total > 0:
        is_cut = 0 < shown < total - _TIMELINE_SLACK
        return (shown if is_cut else total), is_cut
    if packets == 0:
        raise bad_request("Could not determine the number of video frames")
    return packets, False


def _told(container: Any, stream: Any) -> int:
    """By the header; 0: not at all."""
    return int(stream.frames) or _by_duration(container, stream)


def _by_duration(container: Any, stream: Any) -> int:
    seconds = (container.duration or 0) / av.time_base
    if seconds <= 0 and stream.duration:
        seconds = float(stream.duration * stream.time_base)
    return math.floor(seconds * _frame_rate(stream) + 0.5)


def _shown(container: Any, stream: Any, limit: TimeLimit) -> tuple[int, int]:
    """Packets to be shown, and frames up to the last of them by its time."""
    count, last = 0, None
    for packet in container.demux(stream):
        limit.check()
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
