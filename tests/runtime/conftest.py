"""Buses for the contract suites."""

from collections.abc import AsyncIterator

import pytest

from runtime.bus import Bus
from runtime.bus.memory import MemoryBus
from schemas.topics import Topics


@pytest.fixture
def topics(topic_prefix: str) -> Topics:
    return Topics(topic_prefix)


@pytest.fixture
async def bus(topics: Topics) -> AsyncIterator[Bus]:
    made = MemoryBus(num_partitions=4, topics=topics)
    await made.start()
    await made.create_topics(topics.all(), num_partitions=4)
    yield made
    await made.stop()
