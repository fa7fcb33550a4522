"""A server as a process of its own, a neighbour who asks it for texts, and what both cost."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from runtime.kafka_local import free_port
from tests.fleet.processes import START_S, Process, until
from tests.hostile import neighbour
from tests.hostile.attack import ANSWER_S, NAME, Answer, Attack, Target

MODELS = Path(__file__).parents[1] / "data" / "models"
_CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
_WARM_UP = 30
"""Chats until their time is the usual one."""
_SAMPLE_S = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Chat:
    """One chat of the neighbour."""

    asked: float
    """Seconds of the monotonic clock."""
    took: float
    status: int


@dataclass(frozen=True)
class Result:
    """What an attack led to."""

    answer: Answer
    took: float
    chats: tuple[Chat, ...]
    """The neighbour's while it lasted, one at least; none where nobody asked beside it."""
    grown_bytes: int
    """Resident memory of the server and its children at its highest, over what it was before."""


class Server:
    """`tokenfleet serve` of a small model, or `launch render` where it has no weights."""

    def __init__(self, group: tuple[str, tuple[str, ...]], folder: Path) -> None:
        """`folder` is for logs and for media that the server may read."""
        self._model, self._flags = group
        self.media = folder / "media"
        self.media.mkdir(exist_ok=True)
        self._folder = folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: Process | None = None
        self._neighbour: Neighbour | None = None
        self.usual: tuple[float, ...] = ()
        """Seconds that chats take when nothing else is asked."""

    def start(self) -> None:
        """Return once it answers and its neighbour has found out how fast. Again after an end."""
        self.close()
        model = MODELS / self._model
        runs = (model / "model.safetensors").exists()
        words = ["serve"] if runs else ["launch", "render", "--api-server-count", "1"]
        words += [str(model), "--port", str(self._port), "--served-model-name", NAME]
        words += ["--allowed-local-media-path", str(self.media), "--log-format", "json"]
        words += ["--enable-scale-out"] if runs else []
        process = self._process = Process(
            "server", [*words, *self._flags], log=self._folder / "server.log", probes=self._port
        )
        until(process.is_ready, process.describe, START_S)
        path = "/v1/chat/completions" + ("" if runs else "/render")
        self._neighbour = Neighbour(self._port, path)
        warm = self._neighbour.until_answered(_WARM_UP)
        self.usual = tuple(chat.took for chat in warm[_WARM_UP // 2 :])

    def close(self) -> None:
        if self._neighbour is not None:
            self._neighbour.close()
        if self._process is not None:
            self._process.kill()
        self._process = self._neighbour = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._process.has_ended

    def output(self) -> str:
        return self._process.output() if self._process else ""

    def is_healthy(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=30).status_code == 200
        return False

    async def suffer(self, attack: Attack) -> Result:
        """Send it the attack. Raise TimeoutError where it is not answered."""
        assert self._process is not None, "started"
        assert self._neighbour is not None, "started"
        chats = self._neighbour
        began = time.monotonic()
        with Memory(self._process.pid) as memory:
            async with (
                asyncio.timeout(ANSWER_S + 10),
                httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client,
            ):
                answer = await attack.send(Target(self.url, self.media, client))
            ended = time.monotonic()
            seen = await asyncio.to_thread(chats.between, began, ended) if attack.beside else ()
        return Result(answer, ended - began, tuple(seen), memory.grown_bytes)


class Neighbour:
    """Asks from `__init__` to `close`, in a process of its own."""

    def __init__(self, port: int, path: str) -> None:
        words = [neighbour.__file__, "127.0.0.1", str(port), path, json.dumps(_CHAT)]
        self._process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._chats: list[Chat] = []
        self._news = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def until_answered(self, count: int) -> list[Chat]:
        """The first chats, so many."""
        self._wait(lambda: len(self._chats) >= count, "the server answers no chats")
        return self._chats[:count]

    def between(self, began: float, ended: float) -> list[Chat]:
        """The chats that were under way in this time; waits for those that still are.

        One at least was asked after `began`.
        """
        self._wait(
            lambda: bool(self._chats) and self._chats[-1].asked > ended, "no chat comes back"
        )
        return [c for c in self._chats if c.asked + c.took > began and c.asked <= ended] or [
            next(c for c in self._chats if c.asked > ended)
        ]

    def close(self) -> None:
        assert self._process.stdin is not None, "piped"
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._reading.join()
        assert self._process.stdout is not None, "piped"
        self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            asked, took, status = line.split()
            with self._news:
                self._chats.append(Chat(float(asked), float(took), int(status)))
                self._news.notify_all()

    def _wait(self, is_met: Callable[[], bool], complaint: str) -> None:
        with self._news:
            assert self._news.wait_for(is_met, ANSWER_S * 2), complaint


class Memory:
    """The highest resident memory of a process and all its children within a `with`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._most = resident_bytes(pid)
        self._ended = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)

    @property
    def grown_bytes(self) -> int:
        return self._most - self._before

    def __enter__(self) -> Self:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampling.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._most = max(self._most, resident_bytes(self._pid))


def resident_bytes(pid: int) -> int:
    """Of a process and its children, theirs included."""
    return sum(_resident(each) for each in [pid, *_children(pid)])


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            own = [int(word) for word in tasks.read_text().split()]
            found += [each for child in own for each in (child, *_children(child))]
    return found
