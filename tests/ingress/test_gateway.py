import asyncio

import msgpack
import pytest

from ingress.gateway import Gateway
from ingress.replies import reply_partition
from runtime.aborts import AbortReader, Aborts
from runtime.bus.memory import MemoryBus
from runtime.errors import BusError, StoreAway, StoreError
from schemas.envelope import CONTENT_TYPE, REQUEST, BlobRef, Caller, Outcome
from schemas.errors import ApiError, FailureCode
from schemas.routes import Kind
from schemas.topics import Topics
from tests.ingress.fakes import in_ms, submit


async def test_a_request_travels_as_an_envelope_and_its_outcome_comes_back(fleet, gateway):
    caller = Caller(request_id="mine")
    deadline = in_ms(5_000)

    asking = gateway.ask(Kind.GENERATE, b'{"a":1}', caller, deadline, pin="prefill")
    async with asking as answer:
        outcome = await answer.next()

    (envelope,) = fleet.seen
    assert outcome == Outcome(status=200, segments=[b'{"ok":true}'])
    assert envelope.kind is Kind.GENERATE
    assert envelope.pin == "prefill"
    assert envelope.parts == {REQUEST: b'{"a":1}'}
    assert envelope.caller == caller
    assert envelope.deadline_ms == deadline
    assert envelope.route == []
    assert fleet.headers[0]["content-type"] == CONTENT_TYPE.encode()


async def test_a_large_body_is_claim_checked(fleet, gateway):
    body = b'{"x":"' + b"a" * 300_000 + b'"}'

    await submit(gateway, body)

    part = fleet.seen[0].parts[REQUEST]
    assert isinstance(part, BlobRef)
    assert await fleet.blobs.get(part) == body


@pytest.mark.parametrize(("patience_s", "status"), [(10, 200), (0, 503)])
async def test_a_store_that_is_away_is_waited_for_so_long(
    fleet, gateway, monkeypatch, patience_s, status
):
    monkeypatch.setattr("ingress.gateway._STORE_AWAY_S", patience_s)
    monkeypatch.setattr("ingress.gateway._STORE_PAUSE_S", 0.001)
    absences = [StoreAway("away")] * 3
    put = fleet.blobs.put

    async def put_later(data, **options):
        if absences:
            raise absences.pop()
        return await put(data, **options)

    monkeypatch.setattr(fleet.blobs, "put", put_later)
    asking = submit(gateway, b'"' + b"a" * 300_000 + b'"')

    if status == 200:
        assert (await asking).status == 200
    else:
        with pytest.raises(ApiError) as caught:
            await asking
        assert caught.value.status == status


async def test_an_outcome_too_large_for_a_record_is_read_from_the_store(fleet, gateway):
    body = b'"' + b"a" * 500_000 + b'"'
    fleet.answer = lambda envelope: Outcome(status=200, segments=[body])

    outcome = await submit(gateway)

    assert outcome.segments == [body]


async def test_a_stored_outcome_that_is_lost_ends_the_wait(fleet, gateway):
    fleet.answer = lambda envelope: None
    waiting = asyncio.create_task(submit(gateway))
    await fleet.until_seen(1)

    lost = msgpack.packb({"id": fleet.seen[0].id, "outcome_name": "outcomes/nothing"})
    await fleet.send(fleet.seen[0], lost)

    with pytest.raises(StoreError):
        await waiting


async def test_nobody_waits_beyond_the_deadline(fleet, gateway):
    fleet.answer = lambda envelope: None

    with pytest.raises(ApiError) as caught:
        await submit(gateway, deadline_ms=in_ms(50))

    assert (caught.value.status, caught.value.code) == (504, FailureCode.DEADLINE_EXCEEDED)
    assert gateway.in_flight == 0


async def test_a_deadline_that_has_passed_is_answered_at_once(fleet, gateway):
    fleet.answer = lambda envelope: None

    with pytest.raises(ApiError) as caught:
        await submit(gateway, deadline_ms=in_ms(-1000))

    assert caught.value.status == 504


async def test_a_cancelled_caller_leaves_no_entry_and_its_reply_is_ignored(fleet, gateway):
    fleet.answer = lambda envelope: None
    waiting = asyncio.create_task(submit(gateway))
    await fleet.until_seen(1)

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await fleet.reply(fleet.seen[0], Outcome(status=200))
    fleet.answer = lambda envelope: Outcome(status=201)

    assert gateway.in_flight == 0
    assert (await submit(gateway)).status == 201


async def test_a_cancelled_caller_tells_everybody_to_stop(fleet, gateway):
    heard = []
    aborts = Aborts()
    aborts.watch(heard.append)
    reader = AbortReader(fleet.bus, fleet.topics, aborts)
    await reader.start()
    fleet.answer = lambda envelope: None
    waiting = asyncio.create_task(submit(gateway))
    await fleet.until_seen(1)

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(10):
        while not heard:
            await asyncio.sleep(0.01)
    await reader.stop()

    assert heard == [fleet.seen[0].id.encode()]


async def test_beyond_the_limit_a_request_is_refused_until_a_place_is_free(fleet, gateway):
    fleet.answer = lambda envelope: None
    waiting = [asyncio.create_task(submit(gateway)) for _ in range(4)]
    await fleet.until_seen(4)

    with pytest.raises(ApiError) as caught:
        await submit(gateway)
    for envelope in fleet.seen:
        await fleet.reply(envelope, Outcome(status=200))
    await asyncio.gather(*waiting)
    fleet.answer = lambda envelope: Outcome(status=200)

    assert caught.value.status == 503
    assert (await submit(gateway)).status == 200
    assert len(fleet.seen) == 5


async def test_replicas_on_one_partition_do_not_eat_each_others_replies(fleet):
    gateways = [
        Gateway(fleet.bus, fleet.blobs, fleet.topics, max_pending=100, replica=f"replica-{n}")
        for n in range(4)
    ]
    for gateway in gateways:
        await gateway.start()
    fleet.answer = lambda e: Outcome(status=200, segments=[e.parts[REQUEST]])

    bodies = [str(n).encode() for n in range(64)]
    outcomes = await asyncio.gather(
        *(submit(gateways[n % 4], body) for n, body in enumerate(bodies))
    )
    for gateway in gateways:
        await gateway.close()

    assert [outcome.segments[0] for outcome in outcomes] == bodies


@pytest.mark.parametrize("value", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"id": 1}),
                                   msgpack.packb({"id": "x"}), b"\x81\x91\x01\x02",
                                   b"\x91" * 2000])  # fmt: skip
async def test_a_reply_that_is_none_is_skipped(fleet, gateway, value):
    async def answer_after_rubbish() -> None:
        await fleet.until_seen(1)
        await fleet.send(fleet.seen[0], value)
        await fleet.reply(fleet.seen[0], Outcome(status=204))

    fleet.answer = lambda envelope: None
    outcome, _ = await asyncio.gather(submit(gateway), answer_after_rubbish())

    assert outcome.status == 204


async def test_a_second_reply_changes_nothing(fleet, gateway):
    fleet.answer = lambda envelope: None
    waiting = asyncio.create_task(submit(gateway))
    await fleet.until_seen(1)

    await fleet.reply(fleet.seen[0], Outcome(status=200))
    await fleet.reply(fleet.seen[0], Outcome(status=500))

    assert (await waiting).status == 200


async def test_a_bus_that_is_away_is_a_503_and_not_a_leak(fleet, gateway):
    await fleet.bus.stop()

    with pytest.raises(ApiError) as caught:
        await submit(gateway)

    assert caught.value.status == 503
    assert gateway.in_flight == 0


async def test_a_hiccup_of_the_bus_does_not_end_the_reading(fleet, monkeypatch):
    monkeypatch.setattr("ingress.replies.RETRY_S", 0.001)
    gateway = Gateway(FlakyBus(fleet.bus), fleet.blobs, fleet.topics, max_pending=4)
    await gateway.start()

    outcome = await submit(gateway)
    await gateway.close()

    assert outcome.status == 200


async def test_closing_twice_and_without_a_start_is_harmless(fleet):
    gateway = Gateway(fleet.bus, fleet.blobs, Topics(), max_pending=4)

    await gateway.close()
    await gateway.close()

    assert not gateway.is_ready


@pytest.mark.parametrize("num_partitions", [1, 3, 8])
def test_the_reply_partition_is_in_range_and_depends_on_the_id_alone(num_partitions):
    partitions = [reply_partition(f"replica-{n}", num_partitions) for n in range(100)]

    assert set(partitions) == set(range(num_partitions))
    assert partitions == [reply_partition(f"replica-{n}", num_partitions) for n in range(100)]


class FlakyBus:
    """Fails the first poll of every reader."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    def __getattr__(self, name):
        return getattr(self._bus, name)

    def reader(self, partition, *, start=None):
        return FlakyConsumer(self._bus.reader(partition, start=start))


class FlakyConsumer:
    def __init__(self, consumer) -> None:
        self._consumer = consumer
        self._failed = False

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    async def poll(self, **limits):
        if not self._failed:
            self._failed = True
            raise BusError("away")
        return await self._consumer.poll(**limits)
