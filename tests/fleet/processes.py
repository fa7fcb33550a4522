"""Roles as processes of their own, started as a user would, each with its output in a file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from runtime.kafka_local import free_port
from tests.fleet.asking import MODEL, NAME

START_S = 240.0
"""Importing the tensor library four times takes minutes on a machine that is busy elsewhere."""
STOP_S = 30.0


class Process:
    """One `tokenfleet …` command and the address of its probes."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path, probes: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{probes}"
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tokenfleet", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
            )

    def is_ready(self) -> bool:
        assert self._process.poll() is None, f"{self.name} ended by itself:\n{self.output()}"
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Of a process that was told to end. Raise TimeoutExpired when it does not."""
        return self._process.wait(STOP_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one kind, of a process that logs JSON."""
        whole = self.output().split("\n")[:-1]  # the last one may still be being written
        lines = [line for line in whole if line.startswith("{")]
        return [line for line in map(json.loads, lines) if line["event"] == name]

    def describe(self) -> str:
        return f"{self.name} is not ready; it said:\n{self.output()[-4000:]}"


class Processes:
    """A fleet, or a part of one; whatever still runs at the end is killed."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._folder = folder
        self.settings = settings
        """Flags that every process started from now on gets."""
        self._stack = ExitStack()
        self.running: dict[str, Process] = {}

    def start(self, name: str, *command: str, probe: str = "--health-port") -> Process:
        """Start `tokenfleet <command> MODEL` with the settings; `probe` is the flag of its port."""
        port = free_port()
        options = {**self.settings, probe: str(port)}
        words = [word for pair in options.items() for word in pair]
        process = Process(
            name, [*command, str(MODEL), *words], log=self._folder / f"{name}.log", probes=port
        )
        self._stack.callback(process.kill)
        self.running[name] = process
        return process

    def wait_until_ready(self) -> None:
        for process in self.running.values():
            until(process.is_ready, process.describe, START_S)

    def terminate(self) -> dict[str, int]:
        """Tell all to end at once; the exit code of each."""
        for process in self.running.values():
            process.terminate()
        return {name: process.exit_code() for name, process in self.running.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def settings_of(servers: str, prefix: str, shared: Path) -> dict[str, str]:
    """The flags that make processes one fleet."""
    return {
        "--bus": f"kafka://{servers}",
        "--topic-prefix": prefix,
        "--num-partitions": "4",
        "--store": f"file://{shared}/store",
        "--ec": f"directory://{shared}/ec",
        "--served-model-name": NAME,
        "--dtype": "float32",
        "--engine-threads": "1",
        "--shutdown-timeout-s": "20",
        "--log-format": "json",
    }


def environment() -> dict[str, str]:
    """Ours without settings of the one who runs the tests; compiled modules are kept."""
    ours = ("TOKENFLEET_", "VLLM_", "PYTHONDONTWRITEBYTECODE")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {
        "OMP_NUM_THREADS": "1"
    }


def until(is_met: Callable[[], bool], describe: Callable[[], str], timeout_s: float) -> None:
    """Fail with what `describe` says when it is not met in time."""
    give_up_at = time.monotonic() + timeout_s
    while not is_met():
        assert time.monotonic() < give_up_at, f"after {timeout_s:g} s: {describe()}"
        time.sleep(0.1)
