"""Puts on Kafka what no decent producer would, while a fleet runs, and sees whether it goes on.

    python tools/fuzz_topic.py --minutes N [--seed S] [--rate R] [--servers HOST:PORT]
                               [--internal] [--without KIND …]
    python tools/fuzz_topic.py --minutes N --servers HOST:PORT --prefix P --pids 1,2,3 [--url URL]

The first form starts the six roles, each a process of its own, on a broker of its own unless one is
given; the second watches a fleet that runs. Records go to the public topic of requests, with
`--internal` to the others as well. It checks that no process ends, that every record that asks for
an answer gets one in time, that nothing of an aborted transaction is answered, that chats over HTTP
go on beside it, and that in the end nothing is left unread. Prints one line; exits 1 otherwise.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

sys.path.insert(0, str(Path(__file__).parents[1]))

from runtime.bus.kafka import KafkaBus
from runtime.kafka_local import LocalKafka
from schemas.envelope import CONTENT_TYPE, Envelope
from schemas.topics import Topics
from tests.fleet.asking import CHAT, NAME, chat, picture
from tests.fleet.processes import Processes, settings_of
from tests.runtime.batches import batch, bomb, record
from tests.runtime.outsider import put_raw

ROLES = ("coordinator", "render", "encode", "prefill", "derender")
MIB = 1024 * 1024
ANSWER_TOPIC = "fuzz-answers"


@dataclass(slots=True)
class Shot:
    """One record of a batch."""

    kind: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    is_answered: bool = True
    """Whether an answer under its key is due."""


class Ammunition:
    """Records of every kind, the same for the same seed."""

    def __init__(self, seed: int, run: str, answers: str, without: Sequence[str]) -> None:
        self._random = random.Random(seed)
        self._run = run
        self._answers = answers
        self._count = 0
        makers: list[Callable[[], Shot]] = [
            self.valid, self.valid, self.batch_line, self.picture, self.rubbish, self.odd_json,
            self.odd_headers, self.odd_destination, self.no_key, self.no_value, self.odd_key,
            self.forged,
        ]  # fmt: skip
        self.makers = [maker for maker in makers if maker.__name__ not in without]

    def shot(self) -> Shot:
        shot = self._random.choice(self.makers)()
        if self._random.random() < 0.3:
            shot.headers += self._any_headers()
        return shot

    def key(self) -> bytes:
        """Nobody else's, with any bytes behind it."""
        self._count += 1
        return f"{self._run}-{self._count}-".encode() + self.some_bytes(8)

    def some_bytes(self, most: int) -> bytes:
        return self._random.randbytes(self._random.randrange(most + 1))

    def valid(self) -> Shot:
        body = chat(f"Say {self._random.random()}", max_tokens=self._random.randint(1, 4))
        return Shot("valid", self.key(), json.dumps(body).encode())

    def picture(self) -> Shot:
        body = chat("What is it?", [picture(self._random.randrange(20))], max_tokens=2)
        return Shot("picture", self.key(), json.dumps(body).encode())

    def batch_line(self) -> Shot:
        line: dict[str, Any] = {
            "custom_id": self._random.choice(["a", "", "ü" * 500, 7, None, "\ud800"]),
            "method": self._random.choice(["POST", "post", "GET", 1, None]),
            "url": self._random.choice([CHAT, "/v1/completions", "/tokenize", "/nope", [], None]),
            "body": self._random.choice(
                [chat("Hi", max_tokens=1), {"prompt": "x", "max_tokens": 1}, [], None, "x", 3]
            ),
        }
        for name in self._random.sample(sorted(line), self._random.randrange(3)):
            del line[name]
        return Shot("batch_line", self.key(), json.dumps(line).encode())

    def rubbish(self) -> Shot:
        most = self._random.choice([0, 10, 1000, 100_000])
        return Shot("rubbish", self.key(), self.some_bytes(most))

    def odd_json(self) -> Shot:
        body: dict[str, Any] = chat("Hi", max_tokens=1)
        for _ in range(self._random.randint(1, 3)):
            name = self._random.choice([*body, "stop", "n", "logprobs", "tools", "seed", "odd"])
            body[name] = self._any_value(3)
        text = json.dumps(body)
        return Shot("odd_json", self.key(), text[: self._random.choice([None, 40])].encode())

    def odd_headers(self) -> Shot:
        shot = self.valid()
        shot.kind = "odd_headers"
        shot.headers = self._any_headers() + self._any_headers()
        return shot

    def odd_destination(self) -> Shot:
        names = [
            b"missing-" + os.urandom(4).hex().encode(), b".", b"..", b"", b"__consumer_offsets",
            b"__transaction_state", b"x" * 249, b"x" * 250, b"a b", b"\xff\xfe", None,
            self._answers.encode(),
        ]  # fmt: skip
        shot = self.valid()
        shot.kind, shot.headers = "odd_destination", [(b"reply-to", self._random.choice(names))]
        return shot

    def no_key(self) -> Shot:
        shot = self.valid()
        shot.kind, shot.key, shot.is_answered = "no_key", None, False
        return shot

    def no_value(self) -> Shot:
        return Shot("no_value", self.key(), None)

    def odd_key(self) -> Shot:
        shot = self.valid()
        size = self._random.choice([0, 1000, 30_000, 2 * MIB])
        # The answer has the key too, and does not fit with one of the largest.
        shot.kind, shot.is_answered = "odd_key", size < MIB
        shot.key = self.key() + self._random.randbytes(size)
        return shot

    def forged(self) -> Shot:
        fields: dict[str, Any] = {
            "id": self._random.choice(["../../x", "", "x" * 5000, uuid.uuid4().hex, 7]),
            "kind": "chat",
            "created_ms": int(time.time() * 1000),
            "deadline_ms": int(time.time() * 1000) + 60_000,
            "reply": {
                "via": self._random.choice(["ingress", "topic", "nobody"]),
                "partition": self._random.choice([-7, 0, 1_000_000, "x"]),
                "topic": self._random.choice([None, self._answers, "__consumer_offsets", "."]),
            },
            "caller": {"tenant": "somebody", "key": self.some_bytes(10)},
            "route": self._any_value(2),
            "parts": {"request": self._any_value(2)},
        }
        for name in self._random.sample(sorted(fields), self._random.randrange(4)):
            del fields[name]
        with suppress(Exception):
            fields["version"] = Envelope.model_fields["version"].default
        shot = Shot("forged", self.key(), msgpack.packb(fields, unicode_errors="surrogatepass"))
        shot.headers = [(b"content-type", CONTENT_TYPE.encode())]
        return shot

    def timestamp_ms(self) -> int:
        now = int(time.time() * 1000)
        return self._random.choice([now, now, now, now - 3_600_000, 0, -1, -(2**62), 2**62])

    def codec(self) -> int:
        return self._random.choice([0, 0, 1, 2, 3, 4])

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def size(self) -> int:
        return self._random.choice([1, 1, 1, 2, 5])

    def pick(self, among: Sequence[Any]) -> Any:
        return self._random.choice(among)

    def _any_headers(self) -> list[tuple[bytes, bytes | None]]:
        names = [
            b"note", b"\xff\xfe\x80", b"", b"traceparent", b"x-tenant", b"correlationId",
            b"idempotency-key", b"x" * 1000, b"content-type", "ü".encode(),
        ]  # fmt: skip
        count = self._random.randint(1, 4)
        chosen = [self._random.choice(names) for _ in range(count)]
        return [(n, self._random.choice([None, b"", self.some_bytes(40)])) for n in chosen]

    def _any_value(self, depth: int) -> Any:
        leaves = [
            None, True, -1, 2**63, 1e308, "", "x", "ü\ud83d", "x" * 2000, [], {}, "\x00", 0.5,
        ]  # fmt: skip
        if depth == 0 or self._random.random() < 0.6:
            return self._random.choice(leaves)
        inner = [self._any_value(depth - 1) for _ in range(self._random.randrange(3))]
        return inner if self._random.random() < 0.5 else {str(n): v for n, v in enumerate(inner)}


class Ended(Exception):
    """A process of the fleet is gone: there is nothing more to see."""


@dataclass(slots=True)
class Ledger:
    """What was sent and what came back."""

    sent: Counter[str] = field(default_factory=Counter)
    waiting: dict[bytes, tuple[str, float]] = field(default_factory=dict)
    """Keys of records without an answer: kind, and when one is overdue."""
    aborted: set[bytes] = field(default_factory=set)
    answered: Counter[bytes] = field(default_factory=Counter)
    refused: int = 0
    violations: list[str] = field(default_factory=list)
    slowest_chat_s: float = 0.0

    def expect(self, shots: Sequence[Shot], answer_s: float) -> None:
        for shot in shots:
            self.sent[shot.kind] += 1
            if shot.is_answered and shot.key is not None and shot.key not in self.answered:
                self.waiting[shot.key] = (shot.kind, time.monotonic() + answer_s)

    def take(self, key: bytes | None) -> None:
        if key is None:
            return
        self.answered[key] += 1
        self.waiting.pop(key, None)
        if key in self.aborted:
            self.violations.append(f"{key[:40]!r} was aborted and is answered")

    def overdue(self) -> None:
        now = time.monotonic()
        for key in [key for key, (_, due) in self.waiting.items() if due < now]:
            kind, _ = self.waiting.pop(key)
            self.violations.append(f"{key[:40]!r} ({kind}) is not answered")


class Fuzz:
    """One run against one fleet."""

    def __init__(self, options: argparse.Namespace, servers: str, prefix: str) -> None:
        self.options = options
        self.servers = servers
        self.topics = Topics(prefix)
        self.answers = prefix.rstrip(".") + "-" + ANSWER_TOPIC
        self.ledger = Ledger()
        run = uuid.uuid4().hex[:8]
        self.ammunition = Ammunition(options.seed, run, self.answers, options.without)

    async def run(self, pids: dict[str, int], url: str | None) -> None:
        await self._create_answers()
        tasks = [asyncio.create_task(self._read_answers())]
        if url:
            tasks.append(asyncio.create_task(self._chat_beside(url)))
        try:
            await self._shoot(pids, tasks)
            await self._wait(lambda: not self.ledger.waiting, pids, self.options.answer_s)
            await self._settle(pids)
        except Ended as error:
            self.ledger.violations.insert(0, str(error))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _create_answers(self) -> None:
        bus = KafkaBus([self.servers], topics=self.topics)
        await bus.start()
        await bus.create_topics([self.answers], num_partitions=1)
        await bus.stop()

    async def _shoot(self, pids: dict[str, int], tasks: list[asyncio.Task[None]]) -> None:
        transactions = AIOKafkaProducer(
            bootstrap_servers=self.servers, transactional_id=f"fuzz-{uuid.uuid4().hex}"
        )
        await transactions.start()
        ends_at = time.monotonic() + self.options.minutes * 60
        try:
            while time.monotonic() < ends_at and not self.ledger.violations:
                began, sent_before = time.monotonic(), sum(self.ledger.sent.values())
                try:
                    await self._volley(transactions)
                except KafkaError:  # the broker does not take it: no concern of the fleet
                    self.ledger.refused += 1
                self._check(pids, tasks)
                count = sum(self.ledger.sent.values()) - sent_before
                pause_s = max(count, 1) / self.options.rate - (time.monotonic() - began)
                await asyncio.sleep(max(pause_s, 0))
        finally:
            await transactions.stop()

    async def _volley(self, transactions: AIOKafkaProducer) -> None:
        ammunition = self.ammunition
        if ammunition.chance(0.05):
            await self._transaction(transactions)
        elif ammunition.chance(0.01):
            await self._put(bomb(0, ammunition.pick([100, 1000]) * MIB))
            self.ledger.sent["bomb"] += 1
        elif self.options.internal and ammunition.chance(0.1):
            await self._internal()
        else:
            shots = [ammunition.shot() for _ in range(ammunition.size())]
            records = [record(n, s.key, s.value, s.headers) for n, s in enumerate(shots)]
            timestamp_ms = ammunition.timestamp_ms()
            whole = batch(0, records, codec=ammunition.codec(), timestamp_ms=timestamp_ms)
            await self._put(whole)
            self.ledger.expect(shots, self.options.answer_s)

    async def _put(self, whole: bytes, topic: str | None = None) -> None:
        partition = self.ammunition.pick(range(self.options.partitions))
        await put_raw(self.servers, topic or self.topics.requests, whole, partition)

    async def _transaction(self, producer: AIOKafkaProducer) -> None:
        shots = [self.ammunition.valid() for _ in range(3)]
        is_kept = self.ammunition.chance(0.5)
        if not is_kept:
            self.ledger.aborted.update(shot.key or b"" for shot in shots)
        await producer.begin_transaction()
        for shot in shots:
            await producer.send_and_wait(self.topics.requests, shot.value, shot.key)
        await asyncio.sleep(self.ammunition.pick([0, 0.5]))
        if is_kept:
            await producer.commit_transaction()
            self.ledger.expect(shots, self.options.answer_s)
        else:
            await producer.abort_transaction()
            self.ledger.sent["aborted"] += len(shots)

    async def _internal(self) -> None:
        outside = {self.topics.requests, self.topics.responses, self.topics.dead_letter}
        topic = self.ammunition.pick(sorted(set(self.topics.all()) - outside))
        shot = self.ammunition.pick([self.ammunition.forged, self.ammunition.rubbish])()
        await self._put(batch(0, [record(0, shot.key, shot.value, shot.headers)]), topic)
        self.ledger.sent["internal"] += 1

    async def _read_answers(self) -> None:
        consumer = AIOKafkaConsumer(
            self.topics.responses,
            self.answers,
            bootstrap_servers=self.servers,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            while True:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for answer in records:
                        self.ledger.take(answer.key)
        finally:
            await consumer.stop()

    async def _chat_beside(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=self.options.answer_s) as client:
            while True:
                began = time.monotonic()
                try:
                    answer = await client.post(CHAT, json=chat("Beside", max_tokens=2))
                    if answer.status_code != 200:
                        said = f"a chat over HTTP: {answer.status_code} {answer.text[:200]}"
                        self.ledger.violations.append(said)
                except httpx.HTTPError as error:
                    self.ledger.violations.append(f"a chat over HTTP: {error!r}")
                took_s = time.monotonic() - began
                self.ledger.slowest_chat_s = max(self.ledger.slowest_chat_s, took_s)
                await asyncio.sleep(2)

    def _check(self, pids: dict[str, int], tasks: Sequence[asyncio.Task[None]] = ()) -> None:
        self.ledger.overdue()
        for name, pid in pids.items():
            if not _is_alive(pid):
                raise Ended(f"{name} has ended")
        for task in tasks:
            if task.done():
                task.result()

    async def _wait(self, is_met: Callable[[], bool], pids: dict[str, int], most_s: float) -> None:
        give_up_at = time.monotonic() + most_s
        while not is_met() and time.monotonic() < give_up_at:
            self._check(pids)
            await asyncio.sleep(0.5)
        self._check(pids)

    async def _settle(self, pids: dict[str, int]) -> None:
        """Until every group has committed everything."""
        give_up_at = time.monotonic() + self.options.answer_s
        while unread := await self._unread():
            self._check(pids)
            if time.monotonic() > give_up_at:
                self.ledger.violations.append(f"unread in the end: {unread}")
                return
            await asyncio.sleep(1)

    async def _unread(self) -> dict[str, int]:
        """Records per topic and partition beyond what its group has committed."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        await admin.start()
        await consumer.start()
        try:
            unread = {}
            for role in ROLES:
                group = self.topics.prefix + role
                offsets = await admin.list_consumer_group_offsets(group)
                partitions = [TopicPartition(*p) for p in offsets]
                for partition, end in (await consumer.end_offsets(partitions)).items():
                    if end > max(offsets[partition].offset, 0):
                        left = end - max(offsets[partition].offset, 0)
                        unread[f"{partition.topic}-{partition.partition}"] = left
            return unread
        finally:
            await consumer.stop()
            await admin.close()


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        # One that has ended stays there as a zombie until its parent asks.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--rate", type=float, default=20.0, help="records a second, at most")
    parser.add_argument("--answer-s", type=float, default=120.0, help="time for an answer")
    parser.add_argument("--internal", action="store_true", help="the fleet's own topics as well")
    parser.add_argument("--without", action="append", default=[], help="a kind to leave out")
    parser.add_argument("--servers", help="a broker that runs")
    parser.add_argument("--prefix", help="of a fleet that runs")
    parser.add_argument("--pids", help="of a fleet that runs")
    parser.add_argument("--url", help="HTTP front of a fleet that runs")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic of requests")
    parser.add_argument("--keep", type=Path, help="folder for the logs of what is started")
    return parser.parse_args()


def _start_fleet(
    stack: ExitStack, options: argparse.Namespace, servers: str, prefix: str
) -> tuple[dict[str, int], str]:
    folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
    folder.mkdir(parents=True, exist_ok=True)
    fleet = stack.enter_context(Processes(folder, settings_of(servers, prefix, folder)))
    for stage in ("render", "encode", "prefill", "derender"):
        fleet.start(stage, "worker", stage)
    fleet.start("coordinator", "coordinator")
    fleet.start("ingress", "ingress", probe="--port")
    fleet.wait_until_ready()
    return {name: process.pid for name, process in fleet.running.items()}, fleet.running[
        "ingress"
    ].url


def main() -> int:
    options = _options()
    with ExitStack() as stack:
        servers = options.servers
        if servers is None:
            servers = stack.enter_context(LocalKafka()).servers
        prefix = options.prefix or f"fuzz-{uuid.uuid4().hex[:8]}."
        if options.pids:
            pids = {f"process {pid}": int(pid) for pid in options.pids.split(",")}
            url = options.url
        else:
            pids, url = _start_fleet(stack, options, servers, prefix)
        fuzz = Fuzz(options, servers, prefix)
        print(f"seed {options.seed}, prefix {prefix}, model {NAME}", flush=True)
        asyncio.run(fuzz.run(pids, url))
    ledger = fuzz.ledger
    twice = sum(count > 1 for count in ledger.answered.values())
    for violation in ledger.violations[:20]:
        print(f"VIOLATION {violation}")
    print(
        f"{'FAILED' if ledger.violations else 'ok'}: {sum(ledger.sent.values())} records"
        f" ({', '.join(f'{n} {kind}' for kind, n in sorted(ledger.sent.items()))}),"
        f" {ledger.refused} refused by the broker, {len(ledger.answered)} answered,"
        f" {twice} more than once, slowest chat beside them {ledger.slowest_chat_s:.1f} s"
    )
    return 1 if ledger.violations else 0


if __name__ == "__main__":
    sys.exit(main())
