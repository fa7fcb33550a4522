"""A small web server with the bad manners that media hosts have."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.Request], "web.StreamResponse"]


@dataclass
class Site:
    """Paths and what they answer; counts what was asked for."""

    port: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    failures: dict[str, list[int]] = field(default_factory=dict)
    """Statuses to answer with, one per request, before the file is given."""
    slow: set[str] = field(default_factory=set)
    endless: set[str] = field(default_factory=set)
    dripping: set[str] = field(default_factory=set)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.hits[path] += 1
        if path in self.slow:
            await asyncio.Event().wait()
        if path in self.redirects:
            return web.Response(status=302, headers={"Location": self.redirects[path]})
        if self.failures.get(path):
            return web.Response(status=self.failures[path].pop(0), text="no")
        if path in self.endless:
            return await _stream_for_ever(request)
        if path in self.dripping:
            return await _stream_for_ever(request, b"x", pause_s=0.02)
        if path not in self.files:
            return web.Response(status=404)
        return web.Response(body=self.files[path])


async def _stream_for_ever(
    request: web.Request, piece: bytes = b"x" * 65536, pause_s: float = 0
) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(piece)
            await asyncio.sleep(pause_s)
    except ConnectionError:
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site = Site()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.port = runner.addresses[0][1]
    try:
        yield site
    finally:
        await runner.cleanup()
