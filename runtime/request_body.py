"""Reads the request body of a job: in a thread where that would hold the event loop up.

What one role of a process has validated, the next one of the same process takes over.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from runtime.stage import Job
from schemas.envelope import REQUEST
from schemas.json_size import is_light
from schemas.limits import ModelLimits
from schemas.routes import Kind
from schemas.validation import parse_body

_T = TypeVar("_T")
_INLINE_BYTES = 512 * 1024
"""A tenth of a millisecond where it is mostly a picture, some milliseconds at worst."""
_MAX_KEPT = 64
_MAX_KEPT_BYTES = 16 * 1024 * 1024


_HEAVY = ThreadPoolExecutor(1, thread_name_prefix="heavy-body")
"""Making thousands of objects holds the interpreter up for as long as a call into a library lasts:
one such body at a time, or they would add up."""


async def parsed(kind: Kind, raw: bytes, limits: ModelLimits) -> BaseModel:
    """As `parse_body`, on the event loop only where that takes no time to speak of."""
    return await off_loop(raw, parse_body, kind, raw, limits)


async def off_loop(raw: bytes, work: Callable[..., _T], *arguments: Any) -> _T:
    """Do something that takes as long as a body's text is large and full of values."""
    if not is_light(raw):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_HEAVY, partial(work, *arguments))
    if len(raw) <= _INLINE_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


@dataclass(frozen=True, slots=True)
class _Read:
    kind: Kind
    raw: bytes
    body: BaseModel


class RequestBodies:
    """Shared by the roles of a process that stand by the same limits.

    A body is taken over by the bytes it came from, and once: whoever has it may change it.
    """

    def __init__(self, limits: ModelLimits) -> None:
        self._limits = limits
        self._kept: OrderedDict[str, _Read] = OrderedDict()
        self._bytes = 0

    async def read(self, job: Job) -> tuple[BaseModel, bytes]:
        """The validated body and what it was. Raise ApiError for all that its schema refuses."""
        raw, kind = await job.read(REQUEST), job.envelope.kind
        body = self._taken(job.envelope.id, kind, raw)
        return (await parsed(kind, raw, self._limits) if body is None else body), raw

    def keep(self, job: Job, body: BaseModel, raw: bytes) -> None:
        """For the next role, which must find it as it was read."""
        self._pop(job.envelope.id)
        if not is_light(raw):  # many times as large as its text
            return
        self._kept[job.envelope.id] = _Read(job.envelope.kind, raw, body)
        self._bytes += len(raw)
        while len(self._kept) > _MAX_KEPT or self._bytes > _MAX_KEPT_BYTES:
            self._pop(next(iter(self._kept)))

    def _taken(self, request_id: str, kind: Kind, raw: bytes) -> BaseModel | None:
        read = self._pop(request_id)
        return read.body if read and read.kind is kind and read.raw == raw else None

    def _pop(self, request_id: str) -> _Read | None:
        read = self._kept.pop(request_id, None)
        if read is not None:
            self._bytes -= len(read.raw)
        return read
