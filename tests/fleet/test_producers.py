"""Requests that other programs put on Kafka by themselves, and the answers they read there."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.topics import Topics
from tests.fleet.asking import CHAT, COMPLETION, NAME, agreed, chat, picture
from tests.fleet.embedded import TIMEOUT_S, Embedded, Running, whole_fleet

pytestmark = pytest.mark.kafka


class Outsider:
    """A program that knows Kafka, JSON and two topic names."""

    def __init__(self, producer: AIOKafkaProducer, requests: str, responses: str) -> None:
        self.responses = responses
        self._producer = producer
        self._requests = requests
        self.consumer: AIOKafkaConsumer | None = None

    async def put(self, value: bytes, key: str, headers: Mapping[str, str] | None = None) -> None:
        encoded = [(name, text.encode()) for name, text in (headers or {}).items()]
        await self._producer.send_and_wait(self._requests, value, key=key.encode(), headers=encoded)

    async def take(self, count: int = 1) -> list[tuple[str, dict]]:
        """The next answers with their keys."""
        assert self.consumer is not None
        async with asyncio.timeout(TIMEOUT_S):
            records = [await self.consumer.getone() for _ in range(count)]
        return [(record.key.decode(), json.loads(record.value)) for record in records]

    async def ask(
        self, value: object, key: str = "k", headers: Mapping[str, str] | None = None
    ) -> dict:
        await self.put(json.dumps(value).encode(), key, headers)
        ((answered_key, answer),) = await self.take()
        assert answered_key == key
        return answer


@pytest.fixture
async def fleet(kafka_servers: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Embedded]:
    plan = whole_fleet(
        tmp_path / "ec",
        bus=f"kafka://{kafka_servers}",
        store=f"file://{tmp_path}/store",
        topic_prefix=topic_prefix,
        num_partitions=2,
    )
    async with Running(plan, tmp_path / "ec") as running:
        yield running


@pytest.fixture
async def outsider(
    fleet: Embedded, kafka_servers: str, topic_prefix: str
) -> AsyncIterator[Outsider]:
    topics = Topics(topic_prefix)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_servers)
    consumer = AIOKafkaConsumer(
        topics.responses, bootstrap_servers=kafka_servers, auto_offset_reset="earliest"
    )
    await producer.start()
    await consumer.start()
    outsider = Outsider(producer, topics.requests, topics.responses)
    outsider.consumer = consumer
    yield outsider
    await consumer.stop()
    await producer.stop()


async def test_a_bare_body_is_answered_as_over_http(fleet: Embedded, outsider: Outsider):
    body = chat("What is it?", [picture(1)])

    line = await outsider.ask(body, key="mine")

    assert line["error"] is None
    assert line["custom_id"] is None
    assert line["response"]["status_code"] == 200
    assert agreed(line["response"]["body"]) == agreed(await fleet.ask(CHAT, body))


async def test_a_line_of_a_batch_is_answered_with_its_custom_id(
    fleet: Embedded, outsider: Outsider
):
    body = {"model": NAME, "prompt": ["One", "Two"], "max_tokens": 4, "temperature": 0}

    line = await outsider.ask(
        {"custom_id": "line-7", "method": "POST", "url": COMPLETION, "body": body}
    )

    assert line["custom_id"] == "line-7"
    assert agreed(line["response"]["body"]) == agreed(await fleet.ask(COMPLETION, body))


@pytest.mark.parametrize("value", [b"not json", b"", b"[1]", b'"text"', b"{}", b"\xff\xfe"])
async def test_a_record_that_is_no_request_is_answered_too(outsider: Outsider, value: bytes):
    await outsider.put(value, "odd")

    ((key, line),) = await outsider.take()

    assert key == "odd"
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["code"] == 400
    assert line["error"]["code"] == "invalid_request"
    assert line["error"]["message"] == line["response"]["body"]["error"]["message"]


async def test_a_refused_body_has_the_status_and_body_of_http(fleet: Embedded, outsider: Outsider):
    body = chat("Hi", model="other")

    line = await outsider.ask(body)

    assert line["response"]["status_code"] == 404
    assert line["response"]["body"] == await fleet.ask(CHAT, body, status=404)
    assert line["error"]["code"] == "not_found"


async def test_the_answer_goes_to_the_topic_that_the_record_names(
    fleet: Embedded, outsider: Outsider, topic_prefix: str
):
    mine = f"mine-{topic_prefix}answers"
    await fleet.fleet.shared.bus.create_topics([mine], num_partitions=1)
    outsider.consumer.subscribe([mine])

    line = await outsider.ask(chat("Hi"), headers={"reply-to": mine})

    assert line["response"]["status_code"] == 200


async def test_the_same_idempotency_key_is_the_same_request(outsider: Outsider):
    body, headers = chat("Once"), {"idempotency-key": "order-1"}

    first = await outsider.ask(body, headers=headers)
    again = await outsider.ask(body, headers=headers)
    other = await outsider.ask(body, headers={"idempotency-key": "order-2"})

    assert again == first
    assert other["id"] != first["id"]


async def test_a_stream_is_refused_there(outsider: Outsider):
    line = await outsider.ask(chat("Hi", stream=True))

    assert line["response"]["status_code"] == 400
    assert "stream" in line["error"]["message"]


async def test_many_records_at_once_come_back_under_their_own_keys(outsider: Outsider):
    count = 20
    await asyncio.gather(
        *(outsider.put(json.dumps(chat(f"Number {n}")).encode(), f"key-{n}") for n in range(count))
    )

    answers = await outsider.take(count)

    assert sorted(key for key, _ in answers) == sorted(f"key-{n}" for n in range(count))
    assert all(line["response"]["status_code"] == 200 for _, line in answers)
