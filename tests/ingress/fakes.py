"""A fleet of one task: takes requests off the bus and answers each as it is told."""

import asyncio
from collections.abc import Callable

import msgpack

from ingress.gateway import Gateway
from runtime.bus import Bus, Consumer, Outgoing
from runtime.storage import BlobStore
from schemas.envelope import Caller, Envelope, Outcome, now_ms
from schemas.records.reply import Reply, StreamPiece
from schemas.routes import Kind
from schemas.topics import Topics

Answer = Callable[[Envelope], Outcome | None]


def in_ms(milliseconds: float) -> int:
    return int(now_ms() + milliseconds)


async def submit(gateway: Gateway, body: bytes = b"{}", deadline_ms: int | None = None) -> Outcome:
    """The first that comes, for requests with a whole answer."""
    async with gateway.ask(Kind.CHAT, body, Caller(), deadline_ms or in_ms(10_000)) as answer:
        return await answer.next()


class FakeFleet:
    """Answers in the form that `runtime.delivery` writes; None leaves the caller waiting."""

    def __init__(self, bus: Bus, blobs: BlobStore, topics: Topics, answer: Answer) -> None:
        self.bus, self.blobs, self.topics, self.answer = bus, blobs, topics, answer
        self.seen: list[Envelope] = []
        self.headers: list[dict[str, bytes]] = []
        self.inline_limit = 64 * 1024
        self._arrived = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        consumer = self.bus.consumer([self.topics.admissions], group="fake")
        await consumer.start()
        self._task = asyncio.create_task(self._run(consumer))

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until_seen(self, number: int) -> None:
        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(lambda: len(self.seen) >= number), 10)

    async def reply(self, envelope: Envelope, outcome: Outcome, replica: str | None = None) -> None:
        packed = outcome.model_dump(exclude_defaults=True)
        value = {"id": envelope.id, "outcome": packed}
        if len(msgpack.packb(packed)) > self.inline_limit:
            await self.blobs.put_named(f"outcomes/{envelope.id}", msgpack.packb(packed))
            value = {"id": envelope.id, "outcome_name": f"outcomes/{envelope.id}"}
        await self.send(envelope, msgpack.packb(value), replica)

    async def send_piece(self, envelope: Envelope, piece: StreamPiece) -> None:
        await self.send(envelope, Reply(id=envelope.id, piece=piece).encode())

    async def send(self, envelope: Envelope, value: bytes, replica: str | None = None) -> None:
        headers = {"replica": (replica or envelope.reply.replica).encode()}
        await self.bus.send(
            Outgoing(
                self.topics.replies,
                envelope.id.encode(),
                value,
                headers,
                partition=envelope.reply.partition,
            )
        )

    async def _run(self, consumer: Consumer) -> None:
        while True:
            for record in await consumer.poll(max_records=100, timeout_s=1):
                envelope = Envelope.decode(record.value or b"")
                async with self._arrived:
                    self.seen.append(envelope)
                    self.headers.append(dict(record.headers))
                    self._arrived.notify_all()
                outcome = self.answer(envelope)
                if outcome is not None:
                    await self.reply(envelope, outcome)
