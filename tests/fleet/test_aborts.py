"""A client that leaves takes its work with it, wherever that is."""

import asyncio
import json

import msgpack
import pytest

from runtime.delivery import outcome_name
from schemas.records.control import Abort
from schemas.routes import Stop
from tests.fleet.asking import CHAT, chat
from tests.fleet.embedded import Embedded

LONG = {"max_tokens": 3000, "ignore_eos": True}


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def running(fleet: Embedded, role: str) -> float:
    registry = fleet.fleet.shared.telemetry.registry
    return registry.get_sample_value("tokenfleet_records_in_flight", {"role": role}) or 0.0


def aborted(fleet: Embedded, role: str) -> float:
    registry = fleet.fleet.shared.telemetry.registry
    labels = {"role": role, "outcome": "aborted"}
    return registry.get_sample_value("tokenfleet_records_handled_total", labels) or 0.0


@pytest.mark.parametrize("streams", [False, True])
async def test_a_generation_stops_when_its_client_leaves(embedded: Embedded, streams: bool):
    body = chat("Go on", stream=streams, **LONG)
    asking = asyncio.create_task(embedded.client.post(CHAT, json=body))
    await until(lambda: embedded.sent_to(Stop.PREFILL))

    asking.cancel()

    await until(lambda: aborted(embedded, "prefill") == 1)
    assert running(embedded, "prefill") == 0
    assert await embedded.say(chat("Hello"))


async def test_a_stream_that_is_left_in_the_middle_stops(embedded: Embedded):
    body = chat("Go on", stream=True, **LONG)

    async with embedded.client.stream("POST", CHAT, json=body) as response:
        lines = response.aiter_lines()
        await anext(lines)
        await anext(lines)

    await until(lambda: aborted(embedded, "prefill") == 1)


async def test_a_request_that_was_left_ends_in_one_outcome(embedded: Embedded):
    asking = asyncio.create_task(embedded.client.post(CHAT, json=chat("Go on", **LONG)))
    await until(lambda: embedded.sent_to(Stop.PREFILL))
    (envelope,) = embedded.sent_to(Stop.PREFILL)

    asking.cancel()
    await until(lambda: aborted(embedded, "prefill") == 1)

    async with asyncio.timeout(10):
        while (stored := await embedded.blob(outcome_name(envelope.id))) is None:
            await asyncio.sleep(0.01)
    outcome = msgpack.unpackb(stored)
    assert (outcome["status"], outcome["code"]) == (499, "cancelled")
    assert json.loads(outcome["segments"][0])["error"]["code"] == 499
    topic = embedded.fleet.shared.topics.control
    told = [r.value for rs in embedded.bus.sent.values() for r in rs if r.topic == topic]
    assert Abort.decode(told[-1]).id == envelope.id


async def test_an_answered_request_is_not_aborted(embedded: Embedded):
    await embedded.say(chat("Hello"))

    topic = embedded.fleet.shared.topics.control
    assert not [r for records in embedded.bus.sent.values() for r in records if r.topic == topic]
