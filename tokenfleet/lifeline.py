"""What a server process and its parent say to each other over a socket that only they have.

The parent sends the plan as a line and later, as others, that all of them serve, and `stop`; the
child one line: that it is ready, or why it cannot be. The end of the line is the end of the other
one. Nobody else can end a child: signals that a whole group of processes gets are for the parent.
"""

import asyncio
import os
import shutil
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from runtime.lifecycle import EXIT_FORCED, Service
from tokenfleet.plan import Plan

ALL_SERVE, STOP = b"all serve\n", b"stop\n"
PLAN = TypeAdapter(Plan)


class Ready(BaseModel):
    """It takes connections."""

    said: Literal["ready"] = "ready"


class Refused(BaseModel):
    """It ends, because a setting cannot be."""

    said: Literal["refused"] = "refused"
    reason: str


SAID = TypeAdapter[Ready | Refused](Annotated[Ready | Refused, Field(discriminator="said")])


def plan_line(plan: Plan) -> bytes:
    return PLAN.dump_json(plan) + b"\n"


class Lifeline:
    """The child's end."""

    def __init__(self, connection: socket.socket, metrics: Path) -> None:
        """`metrics`: removed where the parent has gone without doing so."""
        self._connection = connection
        # Without a buffer: its lock, held by a waiting thread, is fatal when the interpreter ends.
        self._lines = connection.makefile("rb", buffering=0)
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self.told_to_end = asyncio.Event()
        self.do_all_serve = False
        """Until then whoever connects would meet the first ones only, and stay with them."""

    def read_plan(self) -> Plan:
        """To be called first. From then on the end of the parent is the end of this process."""
        line = self._lines.readline()
        if not line:
            sys.exit(EXIT_FORCED)
        plan: Plan = PLAN.validate_json(line)
        threading.Thread(target=self._obey, name="parent", daemon=True).start()
        return plan

    def refuse(self, reason: str) -> None:
        self._say(Refused(reason=reason))

    def reporting(self) -> Service:
        """To be started last."""
        return Service("parent", self._say_ready, _nothing)

    def _obey(self) -> None:
        """A thread, so that the parent's end is seen whatever else this process does."""
        with suppress(OSError):
            for line in self._lines:
                if line == ALL_SERVE:
                    self.do_all_serve = True
                elif line == STOP and self._loop is not None:
                    self._loop.call_soon_threadsafe(self.told_to_end.set)
        if self._loop is not None:  # one that still starts leaves it to others, who may need it
            shutil.rmtree(self._metrics, ignore_errors=True)
        os._exit(EXIT_FORCED)

    async def _say_ready(self) -> None:
        self._loop = asyncio.get_running_loop()  # nobody is told to stop before
        self._say(Ready())

    def _say(self, message: Ready | Refused) -> None:
        with suppress(OSError):  # the parent is gone, and so are we in a moment
            self._connection.sendall(message.model_dump_json().encode() + b"\n")


async def _nothing(_: float) -> None:
    return None
