"""One record through a stage: on to the next stop, answered, healed or set aside."""

import logging

import msgpack
import orjson
import pytest

from runtime import logs
from runtime.bus import Record
from runtime.delivery import Delivery
from runtime.stage import Job
from runtime.stage_handler import StageHandler, decode_record
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import Base64Of, BlobRef, Caller, Envelope, Outcome, ReplyTo, now_ms
from schemas.errors import ApiError, DecodeError, EmbeddingMissing
from schemas.routes import Kind, Stop
from schemas.topics import INLINE_LIMIT_BYTES, Topics

TOPICS = Topics("t.")


class FakeStage:
    """Does what the test says."""

    stop = Stop.RENDER

    def __init__(self, process):
        self.process = process

    async def start(self):
        raise NotImplementedError

    async def close(self):
        raise NotImplementedError


def handler(process, **delivery):
    async def run(job):
        process(job)

    return StageHandler(FakeStage(run), Delivery(MemoryBlobs(), TOPICS, **delivery))


def record(*route, value=None, **changes):
    fields = {
        "id": "r1",
        "kind": Kind.CHAT,
        "route": list(route or (Stop.RENDER, Stop.PREFILL, Stop.REPLY)),
        "created_ms": int(now_ms()),
        "deadline_ms": int(now_ms()) + 60_000,
        "reply": ReplyTo(replica="me", partition=2),
    }
    data = Envelope(**(fields | changes)).encode() if value is None else value
    return Record("t.render", 0, 5, b"r1", data)


def nothing(job):
    """A stage that leaves the envelope as it is."""


async def handled(handler, incoming):
    (out,) = await handler.handle(incoming)
    return out


async def test_a_processed_envelope_goes_to_the_next_stop_under_its_id():
    out = await handled(handler(nothing), record())

    envelope = Envelope.decode(out.value)
    assert (out.topic, out.key, envelope.stop) == ("t.prefill", b"r1", Stop.PREFILL)
    assert [hop.stop for hop in envelope.trace] == [Stop.RENDER]


async def test_large_parts_are_claim_checked():
    blob = bytes(INLINE_LIMIT_BYTES + 1)
    stage = handler(lambda job: job.write("big", blob))

    out = await handled(stage, record())

    envelope = Envelope.decode(out.value)
    assert len(out.value) < 2_000
    assert isinstance(envelope.parts["big"], BlobRef)
    assert await Job(envelope, stage.delivery.blobs).read("big") == blob


async def test_many_parts_together_stay_below_the_limit():
    def process(job):
        for number in range(10):
            job.write(str(number), bytes([number]) * 20_000)

    out = await handled(handler(process), record())

    assert len(out.value) <= INLINE_LIMIT_BYTES + 4_000


async def test_a_finished_request_is_replied_to_the_waiting_replica():
    out = await handled(
        handler(lambda job: job.finish([b'{"a":1}'])), record(Stop.RENDER, Stop.REPLY)
    )

    reply = msgpack.unpackb(out.value)
    assert (out.topic, out.partition, out.headers) == ("t.replies", 2, {"replica": b"me"})
    assert (reply["id"], reply["outcome"]["status"]) == ("r1", 200)


async def test_the_callers_fault_is_an_answer():
    def refuse(job):
        raise ApiError("no such picture", status=422, type="UnprocessableEntityError")

    out = await handled(handler(refuse), record())

    outcome = msgpack.unpackb(out.value)["outcome"]
    assert outcome["status"] == 422
    assert outcome["code"] == "unprocessable_media"


async def test_an_expired_request_is_answered_without_work():
    worked = []

    out = await handled(handler(worked.append), record(deadline_ms=1))

    assert msgpack.unpackb(out.value)["outcome"]["code"] == "deadline_exceeded"
    assert worked == []


async def test_a_missing_embedding_goes_to_the_coordinator():
    def miss(job):
        raise EmbeddingMissing(["b", "a"])

    out = await handled(handler(miss), record())

    envelope = Envelope.decode(out.value)
    assert out.topic == "t.coordinate"
    assert envelope.missing == ["a", "b"]
    assert envelope.route == [Stop.COORDINATE, Stop.RENDER, Stop.PREFILL, Stop.REPLY]


@pytest.mark.parametrize("value", [b"", b"\xff", msgpack.packb({"version": 2}), msgpack.packb([1])])
async def test_what_is_no_envelope_is_refused(value):
    with pytest.raises(DecodeError):
        await handler(nothing).handle(record(value=value))


async def test_an_envelope_for_another_stage_is_refused():
    with pytest.raises(DecodeError, match="topic of render"):
        await handler(nothing).handle(record(Stop.ENCODE, Stop.REPLY))


async def test_a_dead_letter_says_where_the_record_is_and_answers_its_caller():
    stage = handler(nothing)
    incoming = record()

    letter, reply = await stage.give_up(incoming, RuntimeError("secret text"), 3)

    report = orjson.loads(letter.value)
    assert letter.topic == "t.dead-letter"
    assert report["source"] == {"topic": "t.render", "partition": 0, "offset": 5}
    assert (report["attempts"], report["error"]) == (3, "RuntimeError")
    assert await stage.delivery.blobs.get(BlobRef(**report["original"])) == incoming.value
    assert msgpack.unpackb(reply.value)["outcome"]["status"] == 500


async def test_a_dead_letter_of_noise_has_nobody_to_answer():
    letters = await handler(nothing).give_up(record(value=b"noise"), DecodeError("noise"), 1)

    assert len(letters) == 1


async def test_a_second_delivery_repeats_the_first_outcome():
    answers = iter([b"1", b"2"])
    stage = handler(lambda job: job.finish([next(answers)]))

    first = await handled(stage, record(Stop.RENDER, Stop.REPLY))
    second = await handled(stage, record(Stop.RENDER, Stop.REPLY))

    assert msgpack.unpackb(second.value)["outcome"] == msgpack.unpackb(first.value)["outcome"]


async def finish_for_producer(segments, **delivery):
    def finish(job):
        job.envelope.outcome = Outcome(status=200, segments=segments)

    stage = handler(finish, **delivery)
    await stage.delivery.blobs.put(b"pixels")
    caller = Caller(key=b"mine", custom_id="c")
    out = await handled(
        stage, record(Stop.RENDER, Stop.REPLY, reply=ReplyTo(via="topic"), caller=caller)
    )
    return out, orjson.loads(out.value)


async def test_a_producer_gets_a_batch_result_with_its_holes_filled():
    ref = await MemoryBlobs().put(b"pixels")

    out, answer = await finish_for_producer([b'{"k":"', Base64Of(blob=ref), b'"}'])

    assert (out.topic, out.key) == ("t.responses", b"mine")
    assert answer["custom_id"] == "c"
    assert answer["response"]["body"] == {"k": "cGl4ZWxz"}
    assert answer["error"] is None


async def test_an_answer_too_large_for_a_record_is_a_failure_with_a_code():
    out, answer = await finish_for_producer([b'"' + b"x" * 200 + b'"'], max_response_bytes=100)

    assert answer["error"]["code"] == "response_too_large"
    assert answer["response"]["status_code"] == 413
    assert len(out.value) < 1_000


@pytest.mark.parametrize("value", [None, b"", b"\xc1", b"\x81\x91\x01\x02", b"\x91" * 2000, b"{}"])
def test_whatever_is_no_envelope_is_a_decode_error(value):
    with pytest.raises(DecodeError):
        decode_record(Record("t", 0, 0, b"k", value))


@pytest.mark.parametrize(
    ("caller", "told"),
    [
        (Caller(), None),
        (Caller(request_id="theirs"), "theirs"),
        (Caller(custom_id="line-7"), "line-7"),
        (Caller(request_id="x" * 1000), "x" * 128),
    ],
)
async def test_what_is_logged_at_a_stage_has_the_callers_id_beside_ours(caller, told):
    seen = {}

    async def run(job):
        line = logs.JsonFormatter().format(logging.makeLogRecord({"msg": "e"}))
        seen.update(orjson.loads(line))

    await StageHandler(FakeStage(run), Delivery(MemoryBlobs(), TOPICS)).handle(
        record(caller=caller)
    )

    assert (seen["request_id"], seen.get("caller_request_id")) == ("r1", told)
