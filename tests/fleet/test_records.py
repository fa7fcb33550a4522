"""Records that other programs put on the fleet's topics, on the memory bus; whatever they hold."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import pytest

from runtime.bus import Bus, Consumer, Outgoing, Record
from schemas.envelope import CONTENT_TYPE, REQUEST, BlobRef, Caller, Envelope, ReplyTo, now_ms
from schemas.routes import Kind, Stop
from schemas.topics import Topics
from tests.fleet.asking import CHAT, chat, generate, picture
from tests.fleet.embedded import TIMEOUT_S, Embedded, Running, whole_fleet

TOPICS = Topics()
ENVELOPE = {"content-type": CONTENT_TYPE.encode()}


class Pipeline:
    """A program beside the fleet: writes to its topics, reads answers and dead letters."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._readers: dict[str, Consumer] = {}

    async def put(
        self,
        value: bytes | None,
        *,
        key: bytes | None = b"k",
        headers: Mapping[str, bytes] | None = None,
        topic: str = TOPICS.requests,
    ) -> None:
        await self._bus.send(Outgoing(topic, key, value, headers or {}))

    async def take(self, topic: str = TOPICS.responses) -> Record:
        """The next record of a topic."""
        if topic not in self._readers:
            self._readers[topic] = self._bus.consumer([topic], group=f"pipeline-{topic}")
            await self._readers[topic].start()
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if records := await self._readers[topic].poll(max_records=1, timeout_s=1.0):
                    return records[0]

    async def ask(self, body: object, **options) -> dict:
        value = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.put(value, **options)
        return json.loads((await self.take()).value)

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.stop()


@pytest.fixture
async def pipeline(embedded: Embedded) -> AsyncIterator[Pipeline]:
    made = Pipeline(embedded.bus)
    yield made
    await made.close()


@asynccontextmanager
async def fleet_with(folder: Path, **settings: object) -> AsyncIterator[tuple[Embedded, Pipeline]]:
    async with Running(whole_fleet(folder / "ec", **settings), folder / "ec") as embedded:
        pipeline = Pipeline(embedded.bus)
        yield embedded, pipeline
        await pipeline.close()


def envelope(body: object, **changes: object) -> Envelope:
    fields = {
        "id": "f" * 32,
        "kind": Kind.CHAT,
        "created_ms": int(now_ms()),
        "deadline_ms": int(now_ms()) + 60_000,
        "reply": ReplyTo(replica="nobody", partition=1),
        "parts": {REQUEST: json.dumps(body).encode()},
    }
    return Envelope.model_validate(fields | changes)


async def test_an_envelope_on_the_public_topic_is_a_body_that_is_not_json(
    embedded: Embedded, pipeline: Pipeline
):
    forged = envelope(
        chat("Hi"),
        caller=Caller(tenant="somebody"),
        reply=ReplyTo(via="topic", topic="tokenfleet.prefill"),
    )

    answer = await pipeline.ask(forged.encode(), headers=ENVELOPE)

    assert answer["response"]["status_code"] == 400
    assert not embedded.bus.sent[b"f" * 32]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../x"},
        {"id": ""},
        {"id": "x" * 5000},
        {"reply": {"partition": -7}},
        {"reply": {"partition": 10**6}},
        {"reply": {"via": "topic", "topic": "tokenfleet.prefill"}},
        {"kind": "nonsense"},
        {"parts": {}},
        {"parts": {REQUEST: {"digest": "../../x", "size": 1}}},
        {"caller": {"request_id": "x" * 100_000}},
        {"created_ms": 2**63, "deadline_ms": 2**64 - 1, "version": 2},
    ],
)
async def test_a_forged_admission_is_set_aside_and_its_neighbours_answered(
    embedded: Embedded, pipeline: Pipeline, change: dict
):
    forged = msgpack.packb(msgpack.unpackb(envelope(chat("Hi")).encode()) | change)

    for _ in range(20):  # more than there are slots
        await pipeline.put(forged, headers=ENVELOPE, topic=TOPICS.admissions)
    letter = json.loads((await pipeline.take(TOPICS.dead_letter)).value)

    assert letter["code"] == "undecodable"
    assert letter["source"]["topic"] == TOPICS.admissions
    assert await embedded.say(chat("Hi"))


async def test_a_reference_to_somebody_elses_body_leads_nowhere(tmp_path: Path):
    store = f"file://{tmp_path}/store"
    async with fleet_with(tmp_path, store=store) as (embedded, pipeline):
        body = chat("A secret " * 20_000, max_tokens=1)
        response = await embedded.client.post(CHAT, json=body)
        (sent,) = [
            Envelope.decode(r.value)
            for records in embedded.bus.sent.values()
            for r in records
            if r.topic == TOPICS.admissions
        ]
        assert isinstance(sent.parts[REQUEST], BlobRef)
        assert response.status_code == 400  # too long for the model, and read by the fleet

        forged = envelope({}, parts={REQUEST: sent.parts[REQUEST]})
        await pipeline.put(forged.encode(), headers=ENVELOPE, topic=TOPICS.admissions)
        letter = json.loads((await pipeline.take(TOPICS.dead_letter)).value)

    assert letter["code"] == "undecodable"
    assert "no ingress has put" in letter["error"]


@pytest.mark.parametrize(
    "name", ["missing", ".", "..", "x" * 249, "a b", "__consumer_offsets", "tokenfleet.prefill"]
)
async def test_a_destination_that_cannot_be_is_a_400_on_the_fleets_own(
    embedded: Embedded, pipeline: Pipeline, name: str
):
    for _ in range(17):
        answer = await pipeline.ask(chat("Hi"), headers={"reply-to": name.encode()})

    assert answer["response"]["status_code"] == 400
    assert answer["response"]["body"]["error"]["param"] == "reply-to"
    assert not embedded.records_for(Stop.PREFILL)


async def test_an_answer_says_what_it_answers(embedded: Embedded, pipeline: Pipeline):
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = {
        "correlationId": b"\x00\xff",
        "correlation-id": b"c",
        "traceparent": trace,
        "x-no": b"n",
    }

    await pipeline.put(json.dumps(chat("Hi")).encode(), key=None, headers=given)
    answer = await pipeline.take()

    echoed = {name: value for name, value in given.items() if name != "x-no"}
    source = answer.headers["tokenfleet-source"].decode()
    assert dict(answer.headers).items() >= echoed.items()
    assert "x-no" not in answer.headers
    assert re.fullmatch(rf"{TOPICS.requests}/\d/0", source)
    request_id = answer.headers["tokenfleet-request-id"].decode()
    assert json.loads(answer.value)["id"] == f"batch_req_{request_id}"


async def test_headers_that_are_named_are_repeated_within_bounds(tmp_path: Path):
    async with fleet_with(tmp_path, echo_headers=("x-order", "x-large")) as (_, pipeline):
        headers = {"x-order": b"7", "x-large": bytes(100_000)}
        await pipeline.put(json.dumps(chat("Hi")).encode(), headers=headers)
        answer = await pipeline.take()

    assert answer.headers["x-order"] == b"7"
    assert "x-large" not in answer.headers


DEEP = b"[" * 300 + b"]" * 300
ODD = {
    "cut short": b'{"messages": [',
    "NaN": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "twice the same key": b'{"messages": 1, "messages": []}',
    "nested deeply": b'{"messages": ' + DEEP + b"}",
    "half a surrogate pair": b'{"messages": [{"role":"user","content":"x"}], "stop": ["\\ud83d"]}',
    "half a pair as model": b'{"messages": [{"role":"user","content":"x"}], "model": "\\ud800"}',
    "a long number": b'{"messages": [], "seed": ' + b"1" * 5000 + b"}",
    "UTF-16": '{"messages": 3}'.encode("utf-16"),
    "a value of the wrong kind": b'{"messages": {"a": [1]}}',
    "an unknown parameter of a message": b'{"messages": [{"role": 5}]}',
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
async def test_a_topic_says_what_http_says(embedded: Embedded, pipeline: Pipeline, body: bytes):
    over_http = await embedded.client.post(
        CHAT, content=body, headers={"content-type": "application/json"}
    )

    answer = await pipeline.ask(body)

    assert answer["response"]["status_code"] == over_http.status_code == 400
    assert answer["response"]["body"] == over_http.json()


PARSED = [name for name in ODD if name not in ("cut short", "UTF-16", "a long number")]


@pytest.mark.parametrize("name", PARSED)
async def test_a_bad_body_in_a_line_keeps_its_custom_id_and_https_message(
    embedded: Embedded, pipeline: Pipeline, name: str
):
    over_http = await embedded.client.post(
        CHAT, content=ODD[name], headers={"content-type": "application/json"}
    )
    line = b'{"custom_id": "mine", "method": "POST", "url": "%s", "body": %s}'

    answer = await pipeline.ask(line % (CHAT.encode(), ODD[name]))

    assert answer["custom_id"] == "mine"
    assert answer["response"]["status_code"] == over_http.status_code
    assert answer["response"]["body"] == over_http.json()


@pytest.mark.parametrize("body", [b'{"messages": [', b"\xff\xfe", b"1" * 5000, b"[" * 100_000])
async def test_a_line_that_is_not_json_keeps_its_custom_id(pipeline: Pipeline, body: bytes):
    answer = await pipeline.ask(b'{"custom_id": "mine", "url": "/v1/completions", "body": ' + body)

    assert answer["custom_id"] == "mine"
    assert answer["response"]["status_code"] == 400


@pytest.mark.parametrize(
    ("custom_id", "told"),
    [("x" * 1_000_000, "x" * 1024), ("a\ud800b", "a?b"), (7, None), ({"a": 1}, None)],
)
async def test_a_custom_id_that_cannot_be_is_refused_by_its_name(
    pipeline: Pipeline, custom_id: object, told: str | None
):
    answer = await pipeline.ask({"custom_id": custom_id, "url": CHAT, "body": chat("Hi")})

    assert answer["response"]["status_code"] == 400
    assert answer["response"]["body"]["error"]["param"] == "custom_id"
    assert answer["custom_id"] == told


async def test_a_key_too_long_to_repeat_is_refused_and_the_answer_has_none(pipeline: Pipeline):
    await pipeline.put(json.dumps(chat("Hi")).encode(), key=bytes(1_000_000))
    answer = await pipeline.take()

    assert answer.key is None
    assert json.loads(answer.value)["response"]["body"]["error"]["param"] == "key"


async def test_a_record_may_shorten_its_deadline_and_not_lengthen_it(
    embedded: Embedded, pipeline: Pipeline
):
    late = await pipeline.ask(chat("Hi"), headers={"x-request-timeout": b"1e-9"})
    odd = await pipeline.ask(chat("Hi"), headers={"x-request-timeout": b"soon"})
    await pipeline.ask(chat("Hi"), headers={"x-request-timeout": b"1e300"})

    assert late["error"]["code"] == "deadline_exceeded"
    assert odd["response"]["body"]["error"]["param"] == "x-request-timeout"
    (asked,) = embedded.sent_to(Stop.PREFILL)
    assert asked.deadline_ms <= now_ms() + 600_000


async def test_unreadable_metadata_beside_tensors_is_ignored(
    embedded: Embedded, pipeline: Pipeline
):
    rendered = await embedded.ask(f"{CHAT}/render", chat("What?", [picture(1)]))
    body = generate(rendered)
    body["features"]["mm_metadata"] = {"image": ["%%% not base64"]}

    answer = await pipeline.ask(body)

    assert answer["response"]["status_code"] == 200


async def test_an_envelope_that_outgrows_a_record_travels_by_reference(
    embedded: Embedded, pipeline: Pipeline
):
    rendered = await embedded.ask(f"{CHAT}/render", chat("What?", [picture(1)]))
    many = {f"key-{n}": {"peer_host": "h" * 100} for n in range(5_000)}

    body = generate(rendered, ec_transfer_params=many)
    outcome = await embedded.client.post("/inference/v1/generate", json=body)
    too_many = generate(rendered, ec_transfer_params={str(n): "v" for n in range(250_000)})
    refused = await embedded.client.post("/inference/v1/generate", json=too_many)

    assert outcome.status_code == 200, outcome.text
    assert refused.status_code == 400, refused.text
    assert "ec_transfer_params" in refused.json()["error"]["param"]


async def test_a_store_that_is_away_for_a_while_costs_no_answer(tmp_path: Path):
    folder, aside = tmp_path / "store", tmp_path / "aside"
    async with fleet_with(tmp_path, store=f"file://{folder}") as (embedded, pipeline):
        folder.rename(aside)
        for n in range(20):  # more than there are slots
            await pipeline.put(b"not json", key=b"%d" % n)
        body = chat("What?", [picture(2, 600, 400)])
        asked = asyncio.create_task(embedded.client.post(CHAT, json=body))
        text = asyncio.create_task(embedded.client.post(CHAT, json=chat("Hi")))
        await until_waiting(embedded.fleet.shared.telemetry, 60)
        aside.rename(folder)
        answers = [await pipeline.take() for _ in range(20)]
        statuses = [(await task).status_code for task in (asked, text)]

    assert {answer.key for answer in answers} == {b"%d" % n for n in range(20)}
    assert {json.loads(a.value)["response"]["status_code"] for a in answers} == {400}
    assert statuses == [200, 200]
    assert not [r for rs in embedded.bus.sent.values() for r in rs if r.topic == TOPICS.dead_letter]


async def until_waiting(telemetry, count: int) -> None:
    """Until so many tries have been put off, which is more than a record has attempts."""
    name = "tokenfleet_records_handled_total"
    labels = {"role": "coordinator", "outcome": "postponed"}
    async with asyncio.timeout(TIMEOUT_S):
        while (telemetry.registry.get_sample_value(name, labels) or 0) < count:
            await asyncio.sleep(0.01)
