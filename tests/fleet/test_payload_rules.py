"""What travels to whom on the bus, and what happens when embeddings get lost on the way."""

import base64
from collections.abc import Callable
from pathlib import Path

from runtime.bus import Outgoing
from schemas.routes import Stop
from tests.fleet.asking import CHAT, GENERATE, agreed, chat, generate, picture
from tests.fleet.embedded import Embedded

RENDER = "/v1/chat/completions/render"
PAIR = [picture(1), picture(2)]


def once(fleet: Embedded, stop: Stop, act: Callable[[], None]) -> None:
    """Act just before the first record for a stop goes out."""
    topic, done = fleet.fleet.shared.topics.of(stop), []

    def before_send(record: Outgoing) -> None:
        if record.topic == topic and not done:
            done.append(record)
            act()

    fleet.bus.before_send = before_send


def swap(one: Path, other: Path) -> None:
    """Exchange the contents of two files."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


async def hashes_of(fleet: Embedded, body: dict) -> list[str]:
    return (await fleet.ask(RENDER, body))["features"]["mm_hashes"]["image"]


async def test_encode_gets_tensors_without_the_metadata_entries(embedded):
    body = chat("Two", PAIR)
    features = (await embedded.ask(RENDER, body))["features"]

    await embedded.ask(CHAT, body)

    (record,) = embedded.records_for(Stop.ENCODE)
    (envelope,) = embedded.sent_to(Stop.ENCODE)
    payloads = [name for name in envelope.parts if name.split(":")[0] in ("kwargs", "metadata")]
    assert sorted(payloads) == sorted(f"kwargs:image:{h}" for h in features["mm_hashes"]["image"])
    for metadata in features["mm_metadata"]["image"]:
        assert base64.b64decode(metadata) not in record.value


async def test_prefill_gets_metadata_without_tensors(embedded):
    body = chat("Two", PAIR)
    features = (await embedded.ask(RENDER, body))["features"]

    await embedded.ask(CHAT, body)

    (record,) = embedded.records_for(Stop.PREFILL)
    (envelope,) = embedded.sent_to(Stop.PREFILL)
    payloads = [name for name in envelope.parts if name.split(":")[0] in ("kwargs", "metadata")]
    assert sorted(payloads) == sorted(f"metadata:image:{h}" for h in features["mm_hashes"]["image"])
    assert set(envelope.ec_transfer_params) == set(features["mm_hashes"]["image"])
    for tensors in features["kwargs_data"]["image"]:
        assert base64.b64decode(tensors)[:64] not in record.value


async def test_an_embedding_lost_on_the_way_is_made_again(embedded):
    body = chat("Lost?", [picture(1)])
    (mm_hash,) = await hashes_of(embedded, body)
    once(embedded, Stop.PREFILL, lambda: embedded.entry(mm_hash).unlink())

    healed = await embedded.ask(CHAT, body)

    assert [envelope.heals for envelope in embedded.sent_to(Stop.ENCODE)] == [0, 1]
    assert agreed(healed) == agreed(await embedded.ask(CHAT, body))


async def test_only_the_lost_one_of_two_embeddings_is_made_again(embedded):
    body = chat("Lost?", PAIR)
    first, second = await hashes_of(embedded, body)
    once(embedded, Stop.PREFILL, lambda: embedded.entry(second).unlink())

    healed = await embedded.ask(CHAT, body)

    again = embedded.sent_to(Stop.ENCODE)[1]
    assert {item.mm_hash: item.encoded for item in again.items} == {first: True, second: False}
    assert [n for n in again.parts if n.startswith("kwargs:")] == [f"kwargs:image:{second}"]
    assert agreed(healed) == agreed(await embedded.ask(CHAT, body))


async def test_an_embedding_that_is_lost_every_time_fails_in_the_end(embedded):
    body = chat("Lost?", [picture(1)])
    (mm_hash,) = await hashes_of(embedded, body)
    prefill = embedded.fleet.shared.topics.of(Stop.PREFILL)

    def lose(record: Outgoing) -> None:
        if record.topic == prefill:
            embedded.entry(mm_hash).unlink()

    embedded.bus.before_send = lose

    error = (await embedded.ask(CHAT, body, status=400))["error"]

    assert "not in the encoder cache" in error["message"]
    assert [envelope.heals for envelope in embedded.sent_to(Stop.PREFILL)] == [0, 1, 2]


async def test_the_answer_follows_what_is_in_the_cache(embedded):
    """Prefill reads the embeddings of the cache and nothing else of a picture."""
    asked = [chat("Which?", [url]) for url in PAIR]
    answers = [await embedded.say(body) for body in asked]
    entries = [embedded.entry(h) for body in asked for h in await hashes_of(embedded, body)]

    swap(*entries)

    assert [await embedded.say(body) for body in asked] == answers[::-1]


async def test_an_entry_that_is_not_the_announced_one_is_made_again(embedded):
    asked = [chat("Which?", [url]) for url in PAIR]
    other = await embedded.say(asked[1])
    (first,), (second,) = [await hashes_of(embedded, body) for body in asked]
    once(
        embedded,
        Stop.PREFILL,
        lambda: embedded.entry(first).write_bytes(embedded.entry(second).read_bytes()),
    )

    answer = await embedded.say(asked[0])

    assert answer != other
    assert answer == await embedded.say(asked[0])


async def test_a_generate_that_brings_neither_tensors_nor_embeddings_is_refused(embedded):
    rendered = await embedded.ask(RENDER, chat("Neither", [picture(1)]))

    for nothing in ({}, {"ec_transfer_params": {}}, {"ec_transfer_params": None}):
        body = generate(rendered, payload="mm_metadata", **nothing)
        error = (await embedded.ask(GENERATE, body, status=400))["error"]
        assert "metadata-only multimodal items require ec_transfer_params" in error["message"]
    assert not embedded.sent_to(Stop.PREFILL)


async def test_a_generate_that_names_an_embedding_nobody_has_is_refused(embedded):
    rendered = await embedded.ask(RENDER, chat("Nobody", [picture(1)]))
    (mm_hash,) = rendered["features"]["mm_hashes"]["image"]
    named = {"ec_items": [{"mm_hash": mm_hash}]}

    body = generate(rendered, payload="mm_metadata", ec_transfer_params=named)
    error = (await embedded.ask(GENERATE, body, status=400))["error"]

    assert mm_hash[:16] in error["message"]


async def test_an_embedding_that_goes_after_render_saw_it_is_made_again(embedded):
    body = chat("Lost?", [picture(1)])
    answer = await embedded.say(body)
    (mm_hash,) = await hashes_of(embedded, body)
    once(embedded, Stop.PREFILL, lambda: embedded.entry(mm_hash).unlink())

    assert await embedded.say(body) == answer
    assert [envelope.heals for envelope in embedded.sent_to(Stop.RENDER)][-2:] == [0, 1]
    assert [envelope.heals for envelope in embedded.sent_to(Stop.ENCODE)] == [0, 1]


async def test_an_entry_that_is_no_embedding_of_the_picture_is_made_again(embedded):
    body, larger = chat("Which?", [picture(1)]), chat("Which?", [picture(2, 256, 256)])
    answer, _ = await embedded.say(body), await embedded.say(larger)
    (first,), (second,) = await hashes_of(embedded, body), await hashes_of(embedded, larger)
    embedded.entry(first).write_bytes(embedded.entry(second).read_bytes())

    assert await embedded.say(body) == answer
