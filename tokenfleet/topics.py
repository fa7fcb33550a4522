"""Creates the topics of a fleet, and compares those that were there with what it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.bus import Bus, TopicInfo, open_bus
from runtime.bus.limits import max_bytes_of
from runtime.errors import BusError, SettingsError
from runtime.settings import FleetSettings
from schemas.topics import Topics
from tokenfleet.event_loop import run_loop


@dataclass(frozen=True, slots=True)
class Report:
    """What was done, and what is not as it was asked for or has to be, a line each."""

    created: Sequence[str]
    other_counts: Sequence[str]
    """Works as it is: the number of partitions bounds how many workers of a stage have work."""
    too_small: Sequence[str]
    """Records that the fleet writes would be refused."""


def create_topics(settings: FleetSettings) -> Report:
    """SettingsError where the broker is away or refuses."""
    return run_loop(_create(open_bus(settings.bus, settings), settings))


async def _create(bus: Bus, settings: FleetSettings) -> Report:
    topics = Topics(settings.topic_prefix)
    try:
        await bus.start()
        created = await bus.create_topics(topics.all(), num_partitions=settings.num_partitions)
        found = {topic: await bus.topic_info(topic) for topic in topics.all()}
    except BusError as error:
        raise SettingsError(f"--bus {settings.bus}: {error}") from None
    finally:
        await bus.stop()
    return compared(created, found, topics, num_partitions=settings.num_partitions)


def compared(
    created: Sequence[str],
    found: Mapping[str, TopicInfo | None],
    topics: Topics,
    *,
    num_partitions: int,
) -> Report:
    other_counts, too_small = [], []
    for topic, info in found.items():
        if info is None:
            continue
        if info.num_partitions != num_partitions:
            other_counts.append(
                f"{topic} has {info.num_partitions} partitions, not {num_partitions}"
            )
        needed = max_bytes_of(topic, topics)
        if info.max_message_bytes < needed:
            too_small.append(
                f"{topic} takes records of {info.max_message_bytes} bytes and needs {needed}:"
                " set its max.message.bytes"
            )
    return Report(created, other_counts, too_small)
