"""Processes that decode what might take too much: bounded by the kernel, ended when nobody waits.

As many as there are threads here; each thread owns one and starts it when it is first needed. Knows
what is asked of them, not what for.
"""

import asyncio
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from schemas.refusals import bad_request
from workers.models.decoder_wire import Message, memory_file, receive, send
from workers.models.images import Header, ImageOptions, Picture
from workers.models.limits import MediaLimits
from workers.models.threads import prepare
from workers.models.video_file import Source
from workers.models.video_frames import Reading

logger = logging.getLogger(__name__)
T = TypeVar("T")

_ROOT = str(Path(__file__).parents[2])
_MIB = 1024 * 1024
_START_S = 60.0
_PATIENCE = 3
"""A call may last so many times as long as it may take of a processor: others run beside it."""
HEADER_BYTES = 96 * _MIB
SURVEY_BYTES = 256 * _MIB
WORKING_BYTES = 192 * _MIB
"""What decoding one picture takes besides its pixels."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Decoders:
    """A number of such processes; `close` ends them. Calls block: run them by `run`."""

    def __init__(self, count: int, limits: MediaLimits, *, cpu_s: float, name: str) -> None:
        """`cpu_s`: processor time that one call may take."""
        self._limits = limits
        self._cpu_s = cpu_s
        self._local = threading.local()
        self._processes: set[_Process] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads = ThreadPoolExecutor(count, name, initializer=prepare)

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """In a thread with a decoder. A cancelled caller takes what is being decoded with it."""
        job = _Job()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._within, job, call, *args)
        except asyncio.CancelledError:
            job.cancel()
            raise

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._processes:
                process.kill()
                process.wait()

    def _within(self, job: "_Job", call: Callable[..., T], *args: Any) -> T:
        self._local.job = job
        try:
            return call(*args)
        finally:
            self._local.job = None

    # --- calls

    def header(self, data: bytes, options: ImageOptions) -> Header:
        """As `images.read_header`."""
        message = {"call": "header", "options": _fields(options)}
        reply, _ = self._ask(data, message, HEADER_BYTES)
        return Header(*reply["header"])

    def picture(self, data: bytes, options: ImageOptions, expected: Header) -> Picture:
        """As `images.decode`, and ready to be seen; `expected` bounds what it may take."""
        memory = min(picture_bytes(expected), self._limits.max_decoder_bytes)
        message = {"call": "picture", "options": _fields(options)}
        reply, pixels = self._ask(data, message, memory)
        header = Header(*reply["header"])
        unseen = reply.get("unseen")
        if unseen is not None:
            return Picture(None, header, reply["mode"], unseen=bad_request(unseen))
        assert pixels is not None, "sent with the size"
        size = (reply["size"][0], reply["size"][1])
        image = Image.frombuffer("RGBX", size, _mapped(pixels), "raw", "RGBX", 0, 1)
        return Picture(image, header, reply["mode"], is_shown=True)

    def source(self, data: bytes) -> Source:
        reply, _ = self._ask(data, {"call": "source"}, SURVEY_BYTES)
        return Source(*reply["source"])

    def recounted(self, data: bytes, source: Source) -> Source:
        message = {"call": "recounted", "source": _fields(source)}
        reply, _ = self._ask(data, message, 2 * SURVEY_BYTES)
        return Source(*reply["source"])

    def frames(self, data: bytes, wanted: list[int], source: Source, *, recovers: bool) -> Reading:
        size = len(wanted) * source.width * source.height * 3
        message = {
            "call": "frames", "source": _fields(source), "wanted": wanted, "recovers": recovers,
        }  # fmt: skip
        reply, pixels = self._ask(data, message, size + 2 * SURVEY_BYTES)
        assert pixels is not None, "a video without frames is refused"
        shape = tuple(reply["shape"])
        frames = np.frombuffer(_mapped(pixels), np.uint8, int(np.prod(shape))).reshape(shape)
        return Reading(frames, reply["valid"], reply["is_damaged"], dict(reply["times"]))

    # --- asking

    def _ask(self, data: bytes, message: Message, memory: int) -> tuple[Message, int | None]:
        """`memory`: beside the file itself."""
        call = {
            **message,
            "limits": {"max_image_pixels": self._limits.max_image_pixels},
            "memory": memory + 2 * len(data),
            "cpu_s": self._cpu_s,
            "wall_s": self._cpu_s * _PATIENCE,
        }
        file = _file_of(data)
        try:
            reply, pixels = self._exchange(call, file)
        finally:
            os.close(file)
        if "refused" in reply:
            if reply.get("is_odd"):
                logger.warning("decoder_failed", extra={"error": reply["refused"]})
            raise bad_request(_refusal(reply["refused"], bool(reply.get("is_odd"))))
        return reply, pixels

    def _exchange(self, call: Message, file: int) -> tuple[Message, int | None]:
        """With a process that is there; one that has just ended for want of work is replaced."""
        process = self._process()
        try:
            return process.ask(call, file, self._job, self._cpu_s * _PATIENCE + _START_S)
        except (EOFError, OSError):
            code = self._dropped(process)
            if self._job.is_cancelled or self._is_closed:
                raise asyncio.CancelledError from None
            if code != 0:
                raise bad_request(_death(code, self._cpu_s)) from None
        process = self._process()
        try:
            return process.ask(call, file, self._job, self._cpu_s * _PATIENCE + _START_S)
        except (EOFError, OSError):
            raise bad_request(_death(self._dropped(process), self._cpu_s)) from None

    @property
    def _job(self) -> "_Job":
        job: _Job | None = getattr(self._local, "job", None)
        return job or _Job()

    def _process(self) -> "_Process":
        """This thread's."""
        process: _Process | None = getattr(self._local, "process", None)
        if process is not None and process.is_running:
            return process
        if process is not None:
            self._dropped(process)
        process = self._local.process = _Process()
        with self._lock:
            self._processes.add(process)
            if self._is_closed:
                process.kill()
        return process

    def _dropped(self, process: "_Process") -> int:
        with self._lock:
            self._processes.discard(process)
        self._local.process = None
        return process.end()


class _Job:
    """One call, from the side of who may give it up."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def begin(self, process: "_Process | None") -> None:
        with self._lock:
            self._process = process
            if self.is_cancelled and process is not None:
                process.kill()

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            if self._process is not None:
                self._process.kill()


class _Process:
    """One decoder; used by one thread, ended by any."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-P", "-m", "workers.models.decoder_child", str(theirs.fileno())]
        with theirs:
            self._child = subprocess.Popen(
                words,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": _ROOT},
            )
        self._socket = ours

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def ask(
        self, call: Message, file: int, job: _Job, timeout_s: float
    ) -> tuple[Message, int | None]:
        """Raise EOFError or OSError where it has ended or takes too long."""
        job.begin(self)
        try:
            self._socket.settimeout(timeout_s)
            send(self._socket, call, file)
            return receive(self._socket)
        finally:
            job.begin(None)

    def kill(self) -> None:
        with suppress(OSError):
            self._child.kill()

    def wait(self) -> int:
        return self._child.wait()

    def end(self) -> int:
        """Its exit code; negative for a signal."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(0.1 if self.is_running else None)
        self._child.kill()
        return self._child.wait()


def picture_bytes(header: Header) -> int:
    """Memory for decoding a picture: its pixels in the file's form, turned, and shown."""
    return header.width * header.height * 12 + WORKING_BYTES


def _fields(value: ImageOptions | Source) -> Sequence[Any]:
    if isinstance(value, ImageOptions):
        return value.mode, value.background
    return value.width, value.height, value.total_frames, value.fps, value.is_cut


def _file_of(data: bytes) -> int:
    descriptor = memory_file()
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def _mapped(descriptor: int) -> Any:
    """What the file of a descriptor holds, in shared memory; closes the descriptor."""
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _refusal(text: str, is_odd: bool) -> str:
    return f"Failed to load media: {text}" if is_odd else text


def _death(code: int, cpu_s: float) -> str:
    if code == -signal.SIGXCPU:
        return f"Failed to load media: it takes longer than {cpu_s:g} s to decode"
    if code == -signal.SIGKILL:
        return "Failed to load media: it takes too long, or too much memory, to decode"
    return "Failed to load media: the decoder failed on this file"
