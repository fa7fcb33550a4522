"""Buses for the contract suites."""

from collections.abc import AsyncIterator

import pytest

from runtime.bus import Bus, open_bus
from runtime.settings import FleetSettings
from schemas.topics import Topics

BUSES = ["memory", pytest.param("kafka", marks=pytest.mark.kafka)]
NUM_PARTITIONS = 4


@pytest.fixture
def topics(topic_prefix: str) -> Topics:
    return Topics(topic_prefix)


@pytest.fixture(params=BUSES)
async def bus(request: pytest.FixtureRequest, topics: Topics) -> AsyncIterator[Bus]:
    """A started bus with the fleet's topics; a test that takes it runs on both."""
    url = "memory://"
    if request.param == "kafka":
        url = f"kafka://{request.getfixturevalue('kafka_servers')}"
    settings = FleetSettings(
        topic_prefix=topics.prefix, num_partitions=NUM_PARTITIONS, session_timeout_ms=6000
    )
    made = open_bus(url, settings)
    await made.start()
    await made.create_topics(topics.all(), num_partitions=NUM_PARTITIONS)
    yield made
    await made.stop()
