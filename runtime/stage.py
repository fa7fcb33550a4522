"""What a stage is to the runtime: one coroutine over a job. Knows no bus."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgpack

from runtime.storage import BlobStore
from schemas.envelope import Base64Of, BlobRef, Envelope, Outcome, ReplyTo
from schemas.errors import DecodeError
from schemas.records.derender import TokensRecord
from schemas.records.reply import StreamPiece
from schemas.routes import Stop
from schemas.topics import INLINE_LIMIT_BYTES


class Stage(Protocol):
    """Work of one stop. Safe to call twice with the same envelope; never blocks the event loop."""

    stop: Stop

    async def start(self) -> None:
        """Load and warm what the stage needs. Raise SettingsError where that is impossible."""

    async def process(self, job: "Job") -> None:
        """Change the job's envelope and parts for the next stop.

        Where the next stop is `reply`, `job.finish` must have been called. Raise ApiError for the
        caller's fault, Transient for what may work in a moment.
        """

    async def close(self) -> None:
        """Release; safe to call twice and after a failed start."""


@runtime_checkable
class TokensStage(Protocol):
    """A stage that is also told what an answer grows by while it grows."""

    async def take_tokens(self, tokens: TokensRecord) -> tuple[ReplyTo, StreamPiece] | None:
        """What to send to whom; None where nothing is to be said."""


class Outlet(Protocol):
    """What a stage may send while it works. Each call returns once the record is acknowledged."""

    async def send_envelope(self, envelope: Envelope) -> None:
        """To the stop it is at."""

    async def send_tokens(self, tokens: TokensRecord) -> None:
        """To derender."""

    async def send_piece(self, envelope: Envelope, piece: StreamPiece) -> None:
        """To whoever waits for the request's answer."""


class Job:
    """One envelope in one stage's hands: reads parts wherever they live, collects new ones."""

    def __init__(self, envelope: Envelope, blobs: BlobStore, outlet: Outlet | None = None) -> None:
        """`outlet`: where the stage streams."""
        self.envelope = envelope
        self.blobs = blobs
        self.outlet = outlet
        self.blob_bytes = 0  # newly written to the store by this stop

    async def read(self, name: str) -> bytes:
        """A part's bytes. DecodeError where the envelope lacks it, StoreError the store."""
        part = self.envelope.parts.get(name)
        if part is None:
            raise DecodeError(f"the envelope carries no part {name!r}")
        return part if isinstance(part, bytes) else await self.blobs.get(part)

    async def read_msgpack(self, name: str) -> Any:
        return msgpack.unpackb(await self.read(name), strict_map_key=False)

    def has(self, name: str) -> bool:
        return name in self.envelope.parts

    def write(self, name: str, data: bytes | BlobRef) -> None:
        self.envelope.parts[name] = data

    def write_msgpack(self, name: str, value: Any) -> None:
        self.write(name, msgpack.packb(value))

    def drop(self, name: str) -> None:
        self.envelope.parts.pop(name, None)

    async def spill(self, name: str) -> BlobRef:
        """Move a part to the store now (repeats are free) and return its reference."""
        part = self.envelope.parts[name]
        if isinstance(part, BlobRef):
            return part
        ref = await self.store(part)
        self.envelope.parts[name] = ref
        return ref

    async def store(self, data: bytes) -> BlobRef:
        self.blob_bytes += len(data)
        return await self.blobs.put(data)

    def finish(self, segments: Sequence[bytes | Base64Of], *, status: int = 200) -> None:
        """Set the request's outcome; the body is the concatenation of the segments."""
        self.envelope.outcome = Outcome(status=status, segments=list(segments))

    async def pack(self, limit: int = INLINE_LIMIT_BYTES) -> None:
        """Claim check: spill the largest parts until those left inline fit the limit together."""
        inline = {n: len(p) for n, p in self.envelope.parts.items() if isinstance(p, bytes)}
        total = sum(inline.values())
        for name in sorted(inline, key=inline.__getitem__, reverse=True):
            if total <= limit:
                return
            await self.spill(name)
            total -= inline[name]
