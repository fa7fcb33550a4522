"""Several server processes behind one port: starts them, replaces who dies, ends all of them.

Each is a fresh interpreter (threads, tokenizers and the tensor library do not survive a fork) that
runs the complete server. Knows nothing of what they serve.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from runtime.errors import SettingsError
from runtime.lifecycle import Service
from tokenfleet.children import Child
from tokenfleet.deaths import Deaths
from tokenfleet.lifeline import plan_line
from tokenfleet.plan import Plan
from tokenfleet.shared import METRICS_FOLDER

logger = logging.getLogger(__name__)


class Processes:
    """The children of this process, one at a time in the place of each plan."""

    def __init__(self, plans: Sequence[Plan], metrics: Path, environ: Mapping[str, str]) -> None:
        """`metrics`: the folder in which all of them keep their figures."""
        self._plans = plans
        self._metrics = metrics
        self._environ = environment_of_child(environ, metrics)
        self._children: dict[int, Child] = {}
        self._ready: set[int] = set()
        self._all_ready, self._ending = asyncio.Event(), asyncio.Event()
        self._unclean: list[str] = []
        self._places: list[asyncio.Task[None]] = []

    def service(self) -> Service:
        return Service("processes", self._start, self._stop, self._run)

    async def _start(self) -> None:
        """Return once every one of them serves. SettingsError where one cannot ever."""
        self._places = [
            asyncio.create_task(self._keep(number, plan))
            for number, plan in enumerate(self._plans, 1)
        ]
        ready = asyncio.create_task(self._all_ready.wait())
        try:
            await asyncio.wait([ready, *self._places], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        _raise_first(self._places)

    async def _run(self) -> None:
        await asyncio.wait(self._places, return_when=asyncio.FIRST_COMPLETED)
        _raise_first(self._places)

    async def _stop(self, _: float) -> None:
        """They keep to the budget by themselves; whoever is left when it is over is killed."""
        self._ending.set()
        for child in self._children.values():
            child.stop()
        try:
            await asyncio.gather(*self._places, return_exceptions=True)
        finally:
            for child in self._children.values():
                child.kill()
        if self._unclean:
            raise RuntimeError(", ".join(self._unclean))

    async def _keep(self, number: int, plan: Plan) -> None:
        """Until the end. RuntimeError where nobody lives long enough in this place."""
        deaths = Deaths()
        while not self._ending.is_set():
            child = await self._spawn(number, plan)
            refusal = await self._until_ready(number, child)
            code = await child.process.wait()
            self._bury(number, child)
            if self._ending.is_set():
                self._note_end(number, child, code)
                return
            if refusal is not None and deaths == Deaths():
                raise refusal
            _report(number, child, code, refusal)
            deaths = deaths.after(child.served_s())
            if deaths.is_hopeless:
                raise RuntimeError(f"process {number} died {deaths.at_start} times as it started")
            await self._pause(deaths.pause_s)

    async def _spawn(self, number: int, plan: Plan) -> Child:
        self._metrics.mkdir(mode=0o700, exist_ok=True)  # who tidies up may have taken it away
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tokenfleet.child", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # what a terminal sends to its group is for the parent
                env=self._environ,
            )
        child = self._children[number] = Child(process, *await asyncio.open_connection(sock=ours))
        child.writer.write(plan_line(plan))
        logger.info("process_started", extra={"server": number, "pid": process.pid})
        if self._ending.is_set():
            child.stop()
        return child

    async def _until_ready(self, number: int, child: Child) -> SettingsError | None:
        """Also where it ended first; then with its reason, if it had one."""
        refusal = await child.until_ready()
        if child.ready_at is not None:
            logger.info("process_ready", extra={"server": number, "pid": child.process.pid})
            self._ready.add(number)
            if len(self._ready) == len(self._plans):
                self._all_ready.set()
                for each in self._children.values():
                    each.tell_all_serve()
        return refusal

    def _bury(self, number: int, child: Child) -> None:
        del self._children[number]
        child.writer.close()
        # Its counts stay, or the sums would fall; what it had in flight does not.
        mark_process_dead(child.process.pid, str(self._metrics))  # type: ignore[no-untyped-call]

    def _note_end(self, number: int, child: Child, code: int) -> None:
        if code and child.ready_at is not None:
            self._unclean.append(f"process {number} ended with {code}")

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()


def environment_of_child(environ: Mapping[str, str], metrics: Path) -> dict[str, str]:
    """Children look for modules where their parent did, and nowhere else (`-P`).

    Several share the cores, and requests do: one that spreads a text over all of them takes them
    from the others. Who sets TOKENIZERS_PARALLELISM decides otherwise.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    defaults = {"TOKENIZERS_PARALLELISM": "false"}
    return {**defaults, **environ, METRICS_FOLDER: str(metrics), "PYTHONPATH": paths}


def _raise_first(places: Sequence[asyncio.Task[None]]) -> None:
    for place in places:
        if place.done() and not place.cancelled() and (error := place.exception()) is not None:
            raise error


def _report(number: int, child: Child, code: int, refusal: SettingsError | None) -> None:
    fields: dict[str, Any] = {"server": number, "pid": child.process.pid, "code": code}
    if code < 0:
        fields["signal"] = signal.Signals(-code).name
    if refusal is not None:
        fields["reason"] = str(refusal)
    logger.error("process_died", extra=fields)
