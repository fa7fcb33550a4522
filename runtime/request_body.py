"""Reads the request body of a job: in a thread where that would hold the event loop up."""

import asyncio

from pydantic import BaseModel

from runtime.stage import Job
from schemas.envelope import REQUEST
from schemas.limits import ModelLimits
from schemas.validation import parse_body

_INLINE_BYTES = 512 * 1024
"""A tenth of a millisecond where it is mostly a picture, some milliseconds at worst."""


async def read_request(job: Job, limits: ModelLimits) -> tuple[BaseModel, int]:
    """The validated body, and its bytes. Raise ApiError for everything its schema refuses."""
    raw = await job.read(REQUEST)
    kind = job.envelope.kind
    if len(raw) <= _INLINE_BYTES:
        return parse_body(kind, raw, limits), len(raw)
    return await asyncio.to_thread(parse_body, kind, raw, limits), len(raw)
