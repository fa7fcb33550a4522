"""A process that decodes media for another one, because it can be bounded and ended.

    python -m workers.models.decoder_child FD

FD is a socket to the owner. Each call names the file by a descriptor that comes with it, and how
much memory and processor time it may take: past that the kernel ends this process. Pixels go back
as a descriptor. Ends with the socket, and by itself when nothing is asked for a while.
"""

import contextlib
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from schemas.errors import ApiError
from workers.models import images
from workers.models.capture import TimeLimit
from workers.models.decoder_wire import Message, memory_file, receive, send
from workers.models.limits import MediaLimits
from workers.models.video_file import Source, read_source, recounted
from workers.models.video_frames import Frames, read_frames

IDLE_S = 60.0
_NICENESS = 5
"""Below the processes that answer."""
_BAND_BYTES = 8 * 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")

Reply = tuple[Message, int | None]
"""What is told, and a descriptor of pixels."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the owner, whose end is ours
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with socket.socket(fileno=int(sys.argv[1])) as owner:
        owner.settimeout(IDLE_S)
        while _serve(owner):
            pass


def _serve(owner: socket.socket) -> bool:
    """One call; False where there are no more."""
    try:
        call, data = receive(owner)
    except (EOFError, OSError):
        return False
    _limit(call["memory"], call["cpu_s"])
    try:
        reply, pixels = _answer(call, data)
    except ApiError as error:
        reply, pixels = {"refused": error.message}, None
    except MemoryError:
        reply, pixels = {"refused": "it takes more memory to decode than is allowed"}, None
    except Exception as error:
        reply, pixels = {"refused": str(error) or type(error).__name__, "is_odd": True}, None
    finally:
        if data is not None:
            os.close(data)
    send(owner, reply, pixels)
    if pixels is not None:
        os.close(pixels)
    return True


def _limit(memory: int, cpu_s: float) -> None:
    """From here on, so much more."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _lower(resource.RLIMIT_CPU, int(used + cpu_s) + 1)
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        _lower(resource.RLIMIT_AS, int(file.read().split()[0]) * _PAGE + memory)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (soft, hard))


def _answer(call: Message, descriptor: int | None) -> Reply:
    assert descriptor is not None, "each call comes with a file"
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return _CALLS[call["call"]](file.read(), call)


# --- pictures


def _header(data: bytes, call: Message) -> Reply:
    header = images.read_header(data, _options(call), MediaLimits(**call["limits"]))
    return {"header": _fields(header)}, None


def _picture(data: bytes, call: Message) -> Reply:
    options, limits = _options(call), MediaLimits(**call["limits"])
    image, is_upright = images.loaded(data, limits)
    if is_upright and options.mode == "RGB":
        is_converted = images.needs_conversion(image, options)
        header = images.Header(*image.size, is_converted=is_converted)
        pixels = _written(image, options)
        return {"header": _fields(header), "mode": "RGB", "size": image.size}, pixels
    picture = images.decode(data, options, limits)
    told: Message = {"header": _fields(picture.header), "mode": picture.mode}
    try:
        image = images.as_rgb(picture)
    except ApiError as error:
        return {**told, "unseen": error.message}, None
    return {**told, "size": image.size}, _written(image, images.ImageOptions())


def _options(call: Message) -> images.ImageOptions:
    mode, background = call["options"]
    return images.ImageOptions(mode, tuple(background))


def _fields(header: images.Header) -> tuple[int, int, bool, bool]:
    return header.width, header.height, header.is_converted, header.is_complete


def _written(image: Image.Image, options: images.ImageOptions) -> int:
    """A file of RGBX: what a processor sees. Converted band by band, so that it is there once."""
    width, height = image.size
    rows = max(_BAND_BYTES // (4 * width), 1)
    descriptor = memory_file()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for top in range(0, height, rows):
                band = image.crop((0, top, width, min(top + rows, height)))
                band.info = image.info  # holds the transparent colour
                file.write(images.convert(band, options).tobytes("raw", "RGBX"))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


# --- videos


def _source(data: bytes, call: Message) -> Reply:
    limits, limit = MediaLimits(**call["limits"]), TimeLimit(call["wall_s"])
    source = read_source(data, limits, limit)
    return _told(recounted(data, source, limit) if source.is_cut else source)


def _recounted(data: bytes, call: Message) -> Reply:
    return _told(recounted(data, Source(*call["source"]), TimeLimit(call["wall_s"])))


def _told(source: Source) -> Reply:
    fields = (source.width, source.height, source.total_frames, source.fps, source.is_cut)
    return {"source": fields}, None


def _frames(data: bytes, call: Message) -> Reply:
    made: list[int] = []

    def allocate(shape: tuple[int, ...]) -> Frames:
        made.append(memory_file())
        size = int(np.prod(shape))
        os.truncate(made[0], size)
        return np.frombuffer(mmap.mmap(made[0], size), np.uint8).reshape(shape)

    try:
        reading = read_frames(
            data,
            call["wanted"],
            Source(*call["source"]),
            TimeLimit(call["wall_s"]),
            recovers=call["recovers"],
            allocate=allocate,
        )
    except BaseException:
        for descriptor in made:
            os.close(descriptor)
        raise
    told = {
        "shape": reading.frames.shape,
        "valid": reading.valid,
        "is_damaged": reading.is_damaged,
        "times": list(reading.times.items()),
    }
    return told, made[0]


_CALLS: dict[str, Callable[[bytes, Message], Reply]] = {
    "header": _header,
    "picture": _picture,
    "source": _source,
    "recounted": _recounted,
    "frames": _frames,
}


if __name__ == "__main__":
    main()
