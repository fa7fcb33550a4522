"""A server process as its parent sees it. Decides nothing."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from runtime.errors import SettingsError
from tokenfleet.lifeline import ALL_SERVE, SAID, STOP, Refused


@dataclass(slots=True)
class Child:
    """It runs, or has ended and was not looked at yet."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ready_at: float | None = None
    """On the monotonic clock."""

    async def until_ready(self) -> SettingsError | None:
        """Return when it is, and when it never will be; then the reason, where it gave one."""
        line = b""
        with suppress(ConnectionError):
            line = await self.reader.readline()
        if not line:
            return None
        said = SAID.validate_json(line)
        if isinstance(said, Refused):
            return SettingsError(said.reason)
        self.ready_at = time.monotonic()
        return None

    def served_s(self) -> float | None:
        return None if self.ready_at is None else time.monotonic() - self.ready_at

    def stop(self) -> None:
        """Let it finish what it has; before it was ready it has nothing."""
        if self.ready_at is None:
            self.kill()
        else:
            self.writer.write(STOP)

    def tell_all_serve(self) -> None:
        self.writer.write(ALL_SERVE)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
