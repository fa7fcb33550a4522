"""Records that are meant to stop a fleet, against real processes and a real broker.

Each is answered as it should be; a neighbour on the topic and one over HTTP are answered beside it;
no process ends.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgpack
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from schemas.envelope import CONTENT_TYPE, REQUEST, Caller, Envelope, ReplyTo, now_ms
from schemas.routes import Kind
from schemas.topics import Topics
from tests.fleet.asking import NAME
from tests.fleet.processes import Processes, settings_of
from tests.runtime.batches import CODECS, batch, bomb, record
from tests.runtime.outsider import put_raw

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(480)]

ANSWER_S = 60.0
DETOKENIZE = {"model": NAME, "tokens": [1, 2, 3]}
WELL = json.dumps(DETOKENIZE).encode()
MANY = 17
"""More than a role works on at once."""
ENVELOPE = {"content-type": CONTENT_TYPE.encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("topics")


@pytest.fixture(scope="module")
def processes(kafka_servers: str, folder: Path) -> Iterator[Processes]:
    """What detokenizing takes, which needs no tensor library: three roles, ready."""
    settings = settings_of(kafka_servers, f"hostile-{uuid.uuid4().hex[:8]}.", folder)
    with Processes(folder, settings) as fleet:
        fleet.start("derender", "worker", "derender")
        fleet.start("coordinator", "coordinator")
        fleet.start("ingress", "ingress", probe="--port")
        fleet.wait_until_ready()
        yield fleet


@dataclass
class Attacker:
    """A program that knows Kafka and the names of the fleet's topics."""

    servers: str
    topics: Topics
    producer: AIOKafkaProducer
    admin: AIOKafkaAdminClient
    processes: Processes
    _read: dict[str, list] = field(default_factory=dict)
    _consumers: dict[str, AIOKafkaConsumer] = field(default_factory=dict)

    async def put(
        self,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None = None,
        topic: str | None = None,
    ) -> None:
        await self.producer.send_and_wait(
            topic or self.topics.requests, value, key=key, headers=list((headers or {}).items())
        )

    async def answer_to(self, key: bytes | None, topic: str | None = None) -> dict:
        """The answer under a key, whatever comes before it."""
        return json.loads((await self.record_with(key, topic)).value)

    async def record_with(self, key: bytes | None, topic: str | None = None):
        name = topic or self.topics.responses
        if name not in self._consumers:
            consumer = AIOKafkaConsumer(
                name, bootstrap_servers=self.servers, auto_offset_reset="earliest"
            )
            await consumer.start()
            self._consumers[name], self._read[name] = consumer, []
        async with asyncio.timeout(ANSWER_S):
            while not (found := [r for r in self._read[name] if r.key == key]):
                self._read[name].append(await self._consumers[name].getone())
        return found[0]

    async def make_topic(self, **configs: str) -> str:
        name = f"mine-{uuid.uuid4().hex[:8]}"
        configs = {name.replace("_", "."): value for name, value in configs.items()}
        await self.admin.create_topics([NewTopic(name, 1, 1, topic_configs=configs)])
        return name

    async def neighbours_are_answered(self) -> None:
        key = uuid.uuid4().hex.encode()
        await self.put(WELL, key)
        assert (await self.answer_to(key))["response"]["status_code"] == 200
        url = self.processes.running["ingress"].url
        async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S) as client:
            response = await client.post("/detokenize", json=DETOKENIZE)
        assert response.status_code == 200, response.text
        assert all(process.is_ready() for process in self.processes.running.values())

    async def close(self) -> None:
        for consumer in self._consumers.values():
            await consumer.stop()


@pytest.fixture
async def attacker(kafka_servers: str, processes: Processes) -> AsyncIterator[Attacker]:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_servers, max_request_size=16 * 1024 * 1024, linger_ms=20
    )
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
    await producer.start()
    await admin.start()
    topics = Topics(processes.settings["--topic-prefix"])
    made = Attacker(kafka_servers, topics, producer, admin, processes)
    yield made
    await made.neighbours_are_answered()
    await made.close()
    await admin.close()
    await producer.stop()


def key_of_its_own() -> bytes:
    return uuid.uuid4().hex.encode()


RAW = {
    "a header without a value": {"headers": [(b"note", None)]},
    "a header whose name is not UTF-8": {"headers": [(b"\xff\xfe\x80", b"x")]},
    **{name: {"codec": codec} for name, codec in CODECS.items()},
}


@pytest.mark.parametrize("how", RAW.values(), ids=RAW)
async def test_a_record_that_a_client_can_hardly_read_is_answered(attacker: Attacker, how: dict):
    key = key_of_its_own()
    raw = batch(0, [record(0, key, WELL, how.get("headers", ()))], codec=how.get("codec", 0))
    await put_raw(attacker.servers, attacker.topics.requests, raw)

    assert (await attacker.answer_to(key))["response"]["status_code"] == 200


async def test_a_batch_that_grows_beyond_all_bounds_is_set_aside(attacker: Attacker):
    offset = await put_raw(attacker.servers, attacker.topics.requests, bomb(0, 512 * 1024 * 1024))

    letter = await attacker.answer_to(None, attacker.topics.dead_letter)
    assert letter["source"]["topic"] == attacker.topics.requests
    assert letter["code"] == "undecodable"
    assert letter["source"]["offset"] == offset


@pytest.mark.parametrize("name", ["typo", ".", "..", "x" * 249, "__consumer_offsets"])
async def test_a_destination_that_cannot_be_is_refused(attacker: Attacker, name: str):
    keys = [key_of_its_own() for _ in range(MANY)]
    for key in keys:
        await attacker.put(WELL, key, {"reply-to": name.encode()})

    for key in keys:
        answer = await attacker.answer_to(key)
        assert answer["response"]["status_code"] == 400
        assert answer["response"]["body"]["error"]["param"] == "reply-to"


async def test_a_destination_of_small_records_gets_a_failure_that_fits(attacker: Attacker):
    mine, key = await attacker.make_topic(max_message_bytes="1200"), key_of_its_own()

    value = json.dumps({"model": NAME, "tokens": [1] * 2_000}).encode()
    await attacker.put(value, key, {"reply-to": mine.encode()})

    answer = await attacker.answer_to(key, mine)
    assert answer["error"]["code"] == "response_too_large"


async def test_a_destination_too_small_for_any_answer_ends_in_a_dead_letter(attacker: Attacker):
    mine = await attacker.make_topic(max_message_bytes="300")
    keys = [key_of_its_own() for _ in range(MANY)]
    for key in keys:
        await attacker.put(WELL, key, {"reply-to": mine.encode(), "correlation-id": key})

    seen: set[bytes] = set()
    consumer = AIOKafkaConsumer(
        attacker.topics.dead_letter,
        bootstrap_servers=attacker.servers,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    async with asyncio.timeout(ANSWER_S):
        while not seen >= set(keys):
            letter = await consumer.getone()
            if json.loads(letter.value).get("destination") == mine:
                seen.add(dict(letter.headers)["correlation-id"])
    await consumer.stop()


def forged(**changes: object) -> bytes:
    fields = {
        "id": "f" * 32,
        "kind": Kind.DETOKENIZE,
        "created_ms": int(now_ms()),
        "deadline_ms": int(now_ms()) + 600_000,
        "reply": ReplyTo(replica="nobody", partition=1),
        "caller": Caller(tenant="somebody"),
        "parts": {REQUEST: WELL},
    }
    envelope = msgpack.unpackb(Envelope.model_validate(fields).encode())
    return msgpack.packb(envelope | changes)


FORGERIES = {
    "to an internal topic": {"reply": {"via": "topic", "topic": "tokenfleet.prefill"}},
    "to a partition below zero": {"reply": {"partition": -7}},
    "to a partition that is not there": {"reply": {"partition": 1_000_000}},
    "with a path for an id": {"id": "../../x"},
    "with no id": {"id": ""},
    "with a long id": {"id": "x" * 5_000},
    "with somebody else's body": {"parts": {REQUEST: {"digest": "ab" * 32, "size": 100}}},
}


@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES)
async def test_a_forged_envelope_is_no_json_outside_and_set_aside_inside(
    attacker: Attacker, changes: dict
):
    keys = [key_of_its_own() for _ in range(MANY)]
    for key in keys:
        await attacker.put(forged(**changes), key, ENVELOPE, attacker.topics.admissions)
    await attacker.put(forged(**changes), keys[0], ENVELOPE)

    assert (await attacker.answer_to(keys[0]))["response"]["status_code"] == 400
    for key in keys:
        letter = await attacker.answer_to(key, attacker.topics.dead_letter)
        assert letter["code"] == "undecodable"


async def test_a_store_that_is_away_costs_no_answer(attacker: Attacker, folder: Path):
    keys = [key_of_its_own() for _ in range(3)]
    (folder / "store").rename(folder / "aside")
    for key in keys:
        await attacker.put(b"not json", key)
    coordinator = attacker.processes.running["coordinator"]
    async with asyncio.timeout(ANSWER_S):
        while len(coordinator.events("record_postponed")) < 5 * len(keys):
            await asyncio.sleep(0.05)
    (folder / "aside").rename(folder / "store")

    for key in keys:
        assert (await attacker.answer_to(key))["response"]["status_code"] == 400


REFUSED = {
    "half a surrogate pair as model": (b'{"tokens": [1], "model": "\\ud800"}', "model"),
    "a megabyte of custom_id": (
        json.dumps({"custom_id": "x" * 10**6, "url": "/detokenize", "body": DETOKENIZE}).encode(),
        "custom_id",
    ),
}


@pytest.mark.parametrize(("value", "param"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_written_back_is_refused_by_its_name(
    attacker: Attacker, value: bytes, param: str
):
    key = key_of_its_own()
    await attacker.put(value, key)

    answer = await attacker.answer_to(key)
    assert answer["response"]["status_code"] == 400
    assert answer["response"]["body"]["error"]["param"] == param


async def test_an_old_timestamp_of_a_producer_costs_no_time(attacker: Attacker):
    key = key_of_its_own()
    await attacker.producer.send_and_wait(
        attacker.topics.requests, WELL, key=key, timestamp_ms=1_000_000_000_000
    )

    assert (await attacker.answer_to(key))["response"]["status_code"] == 200
