"""A fleet, or a part of one, inside a running event loop: for the demo, benchmarks and tests.

The command runs the same services under signals (`tokenfleet.run`).
"""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from runtime.health import Readiness
from tokenfleet.roles import build_front
from tokenfleet.services import services_of
from tokenfleet.shared import Shared


class Fleet:
    """`async with Fleet(shared) as fleet:` — every role takes work inside the block."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.readiness = Readiness()
        self.front = build_front(shared, self.readiness)
        self._closing = AsyncExitStack()

    @property
    def url(self) -> str:
        """Of the HTTP front."""
        assert self.front is not None, "this part of a fleet has no HTTP front"
        return self.front.url

    async def __aenter__(self) -> Self:
        timeout_s = self.shared.plan.fleet.shutdown_timeout_s
        try:
            for service in services_of(self.shared, self.readiness, self.front):
                self._closing.push_async_callback(service.stop, timeout_s)
                await service.start()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._closing.aclose()
