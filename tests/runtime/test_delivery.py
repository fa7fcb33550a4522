"""The last record of a request: where it may go, what fits there, and what is set aside."""

import errno
from collections.abc import Callable

import orjson
import pytest

from runtime.bus import Record, TopicInfo
from runtime.delivery import Delivery, failure
from runtime.errors import BusError, StoreAway, StoreRefused, Undeliverable
from runtime.stage import Job
from runtime.stage_handler import dead_letter, forward, read_envelope
from runtime.storage.blobs import open_blobs
from runtime.storage.faults import store_error
from runtime.storage.file_blobs import FileBlobs
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import Caller, Envelope, Item, Outcome, ReplyTo, now_ms
from schemas.errors import ApiError, DecodeError
from schemas.routes import Kind, Stop
from schemas.topics import MAX_RECORD_BYTES, Topics

TOPICS = Topics("t.")
CALLER = Caller(key=b"k", source="t.requests/1/2", headers={"traceparent": b"00-1"})


class Broker:
    """Knows topics by what a test says."""

    def __init__(self, answer: Callable[[], TopicInfo | None]) -> None:
        self._answer = answer

    async def topic_info(self, topic):
        return self._answer()


class StoreThatIsAway(MemoryBlobs):
    async def put(self, data, *, digest=None):
        raise StoreAway("away")

    async def put_if_absent(self, name, data):
        raise StoreAway("away")


def ended(outcome, *, deadline_in_ms=60_000, topic="mine", **changes):
    return Envelope(
        id="r1",
        kind=Kind.CHAT,
        created_ms=0,
        deadline_ms=int(now_ms()) + deadline_in_ms,
        reply=ReplyTo(via="topic", topic=topic),
        caller=CALLER,
        outcome=outcome,
        **changes,
    )


def delivery(limit=10**6, *, blobs=None, missing=False, error=None):
    def answer():
        if error is not None:
            raise error
        return None if missing else TopicInfo(1, limit, is_internal=False)

    return Delivery(blobs or MemoryBlobs(), TOPICS, bus=Broker(answer))


async def delivered(outcome, **options):
    (out,) = await delivery(**options).deliver(ended(outcome))
    return out


async def test_an_answer_has_the_headers_by_which_its_request_is_known():
    out = await delivered(Outcome(status=200, segments=[b"{}"]))

    assert out.headers == {
        "traceparent": b"00-1",
        "tokenfleet-request-id": b"r1",
        "tokenfleet-source": b"t.requests/1/2",
    }


async def test_an_answer_larger_than_its_destination_takes_is_a_failure_that_fits():
    out = await delivered(Outcome(status=200, segments=[b'"' + b"x" * 5_000 + b'"']), limit=1_000)

    answer = orjson.loads(out.value)
    assert answer["error"]["code"] == "response_too_large"
    assert answer["response"]["status_code"] == 413
    assert len(out.value) < 1_000


async def test_a_failure_too_large_for_its_destination_is_told_shorter():
    error = ApiError("no " * 1_000, status=404, type="NotFoundError", param="model")

    answer = orjson.loads((await delivered(failure(error), limit=1_500)).value)

    assert answer["error"]["code"] == "not_found"
    assert answer["response"]["body"]["error"]["type"] == "NotFoundError"
    assert answer["response"]["body"]["error"]["param"] == "model"


@pytest.mark.parametrize(
    "broken",
    [{"limit": 300}, {"missing": True}, {"error": BusError("not allowed", retriable=False)}],
)
async def test_a_destination_that_takes_no_answer_is_named(broken):
    with pytest.raises(Undeliverable) as caught:
        await delivered(Outcome(status=200, segments=[b"{}"]), **broken)

    assert caught.value.topic == "mine"


async def test_a_broker_that_cannot_be_asked_is_left_to_whoever_writes():
    out = await delivered(Outcome(status=200, segments=[b"{}"]), error=BusError("away"))

    assert out.topic == "mine"
    assert out.give_up_ms > now_ms()


async def test_the_fleets_own_topics_are_never_given_up():
    (out,) = await delivery().deliver(ended(Outcome(status=200, segments=[b"{}"]), topic=None))

    assert out.topic == TOPICS.responses
    assert out.give_up_ms is None


async def test_beyond_the_deadline_an_answer_needs_no_store():
    outcome = Outcome(status=200, segments=[b"{}"])
    broken = delivery(blobs=StoreThatIsAway())

    with pytest.raises(StoreAway):
        await broken.deliver(ended(outcome))
    (out,) = await broken.deliver(ended(outcome, deadline_in_ms=-1))

    assert orjson.loads(out.value)["error"]["code"] == "deadline_exceeded"


def test_what_is_no_unicode_can_be_told():
    outcome = failure(ApiError("no model \ud800", param="\udfff"))

    assert outcome.message == "no model ?"
    assert orjson.loads(outcome.segments[0])["error"]["message"] == "no model ?"


async def letter_of(record, error, **options):
    envelope = options.pop("envelope", None)
    letters = await dead_letter(record, error, 1, "render", delivery(**options), envelope=envelope)
    return letters, orjson.loads(letters[0].value)


async def test_a_letter_without_a_store_has_a_small_original_in_it():
    small = Record("t.render", 0, 5, b"k", b"noise")
    large = Record("t.render", 0, 5, b"k", bytes(100_000))

    _, report = await letter_of(small, DecodeError("noise"), blobs=StoreThatIsAway())
    _, without = await letter_of(large, DecodeError("noise"), blobs=StoreThatIsAway())

    assert (report["original"], report["original_base64"]) == (None, "bm9pc2U=")
    assert without["original"] is None
    assert "too large" in without["original_lost"]


async def test_a_letter_fits_into_a_record_whatever_it_is_about():
    huge = Record("t.requests", 0, 5, bytes(8_000_000), bytes(8_000_000))

    (letter,), _ = await letter_of(huge, DecodeError("\ud800" * 1_000_000))

    assert letter.key is None
    assert len(letter.value) < 10_000
    assert letter.headers == {"tokenfleet-source": b"t.requests/0/5"}


async def test_a_letter_about_an_answer_says_where_it_is_and_sends_no_other():
    envelope = ended(None)
    record = Record("t.derender", 0, 5, b"r1", envelope.encode())

    letters, report = await letter_of(record, Undeliverable("mine", "gone"), envelope=envelope)

    assert len(letters) == 1
    assert report["code"] == "undeliverable"
    assert (report["destination"], report["outcome"]) == ("mine", "outcomes/r1")
    assert letters[0].headers["traceparent"] == b"00-1"


async def test_a_stage_that_cannot_be_reached_is_answered_all_the_same():
    letters, _ = await letter_of(
        Record("t.render", 0, 5, b"r1", b"x"),
        Undeliverable("t.prefill", "too large"),
        envelope=ended(None),
    )

    assert [out.topic for out in letters] == ["t.dead-letter", "mine"]


async def test_an_envelope_larger_than_a_record_comes_out_as_it_went_in():
    items = [
        Item(modality="image", mm_hash=f"{n:064x}", offset=n, length=1, embeds=[(0, 1)])
        for n in range(5_000)
    ]
    envelope = ended(None, route=[Stop.PREFILL, Stop.REPLY], items=items)
    way = delivery()

    out = await forward(Job(envelope, way.blobs), way)
    record = Record(out.topic, 0, 0, out.key, out.value, out.headers)

    assert len(envelope.encode()) > MAX_RECORD_BYTES
    assert len(out.value) < 1_000
    assert await read_envelope(record, way.blobs) == envelope


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, StoreAway),
        (errno.EIO, StoreAway),
        (errno.ENOSPC, StoreAway),
        (errno.ENOTDIR, StoreAway),
        (errno.ENAMETOOLONG, StoreRefused),
        (errno.EISDIR, StoreRefused),
    ],
)
def test_a_file_system_that_fails_is_away_but_for_names_that_cannot_be(code, kind):
    assert isinstance(store_error(OSError(code, "x"), "y"), kind)


async def test_a_folder_that_is_gone_is_away_and_not_made_anew(tmp_path):
    blobs = open_blobs((tmp_path / "store").as_uri())
    assert isinstance(blobs, FileBlobs)
    ref = await blobs.put(b"x")
    (tmp_path / "store").rename(tmp_path / "aside")

    for call in (
        lambda: blobs.put(b"y"),
        lambda: blobs.get(ref),
        lambda: blobs.put_if_absent("a", b"b"),
        lambda: blobs.put_named("a", b"b"),
        lambda: blobs.get_named("a"),
    ):
        with pytest.raises(StoreAway):
            await call()

    assert not (tmp_path / "store").exists()
    (tmp_path / "aside").rename(tmp_path / "store")
    assert await blobs.get(ref) == b"x"


async def test_a_name_that_no_object_can_have_is_refused_for_good():
    with pytest.raises(StoreRefused):
        await MemoryBlobs().get_named("../x")
