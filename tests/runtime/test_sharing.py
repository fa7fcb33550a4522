"""Two processes of a fleet find out whether they see the same store."""

from pathlib import Path

from runtime.bus import Bus, Outgoing
from runtime.storage.blobs import open_blobs
from runtime.storage.sharing import SharedStore, store_id
from schemas.topics import Topics


async def test_a_store_keeps_its_id(tmp_path: Path):
    one, same = open_blobs(tmp_path.as_uri()), open_blobs(tmp_path.as_uri())
    other = open_blobs((tmp_path / "other").as_uri())

    assert await store_id(one) == await store_id(same)
    assert await store_id(one) != await store_id(other)


async def test_who_sees_the_same_store_is_ready_and_who_does_not_is_told(
    bus: Bus, topics: Topics, tmp_path: Path
):
    first = SharedStore(bus, topics, open_blobs(tmp_path.as_uri()))
    second = SharedStore(bus, topics, open_blobs(tmp_path.as_uri()))
    stranger = SharedStore(bus, topics, open_blobs((tmp_path / "other").as_uri()))
    assert first.reason() == "the store is not proven to be shared yet"
    await bus.send(Outgoing(topics.control, b"an abort", b"{}", partition=0))

    for store in (first, second, stranger):
        await store.prove()

    assert (first.reason(), second.reason()) == (None, None)
    assert "the rest of the fleet uses" in (stranger.reason() or "")
