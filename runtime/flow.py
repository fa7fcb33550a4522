"""Decides how much a loop may take and which partitions have to wait. Data in, data out."""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.bus import TopicPartition
from schemas.topics import MAX_REQUEST_RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what one loop has in its hands."""

    records: int = 16
    """Handled at once. Those that wait, for a retry or behind their key, hold no slot."""
    bytes: int = 64 * 1024 * 1024
    """Of all records taken and not finished; exceeded by one record at most."""
    distance: int = 1000
    """Per partition, from the committed offset to the newest taken; exceeded by one poll."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a loop has in its hands."""

    records: int
    """Handled now or about to be."""
    bytes: int
    distances: Mapping[TopicPartition, int]


def room(load: Load, limits: Limits) -> int:
    """How many records may be asked for now, each of the largest size at worst."""
    if load.records >= limits.records or load.bytes >= limits.bytes:
        return 0
    fitting = (limits.bytes - load.bytes) // MAX_REQUEST_RECORD_BYTES
    return min(limits.records - load.records, max(fitting, 1))


def paused(load: Load, limits: Limits) -> frozenset[TopicPartition]:
    """Partitions that may give no more until something finishes."""
    if room(load, limits) == 0:
        return frozenset(load.distances)
    return frozenset(p for p, n in load.distances.items() if n >= limits.distance)
