"""Prometheus metrics of a process: what its roles handled, how long it took, what still waits.

Created once per process by the command and handed to whoever measures; knows no HTTP. Several
processes behind one port have one set of figures (`FamilyRegistry`): gauges say how they add up.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from runtime.bus import TopicPartition

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class FamilyRegistry(CollectorRegistry):
    """Shows the figures of all processes that keep theirs in one folder.

    They do where prometheus_client found PROMETHEUS_MULTIPROC_DIR when it was first imported.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)

    def collect(self) -> Iterable[Metric]:
        collector = MultiProcessCollector(None, self._folder)  # type: ignore[no-untyped-call]
        metrics: Iterable[Metric] = collector.collect()  # type: ignore[no-untyped-call]
        return metrics


class Telemetry:
    """The metric families of a process, in one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.handled = self._counter(
            "tokenfleet_records_handled", "Tries of records by outcome", "role", "outcome"
        )
        self.duration = self._histogram(
            "tokenfleet_record_duration_seconds", "Handling, until outputs are acknowledged"
        )
        self.queue = self._histogram(
            "tokenfleet_record_queue_seconds", "From when a record was written to when it was taken"
        )
        self.bytes = self._counter(
            "tokenfleet_record_bytes", "Bytes of records read and written", "role", "direction"
        )
        self.unreadable = self._counter(
            "tokenfleet_records_unreadable",
            "Records, or whole batches, that could not be read and were set aside",
            "role",
            "topic",
            "partition",
        )
        self.in_flight = self._gauge(
            "tokenfleet_records_in_flight", "Records being handled", "role"
        )
        self.held_bytes = self._gauge(
            "tokenfleet_held_bytes", "Bytes of records taken and not finished", "role"
        )
        self.lag = self._gauge(
            "tokenfleet_lag_records", "Written and not committed", "role", "topic", "partition"
        )
        self.loop_lag = self._gauge(
            "tokenfleet_event_loop_lag_seconds",
            "How late the event loop woke, at worst lately",
            of_several="livemax",
        )

    def role(self, name: str) -> "RoleTelemetry":
        return RoleTelemetry(self, name)

    def render(self) -> bytes:
        """The text form that Prometheus reads."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(
        self,
        name: str,
        text: str,
        *labels: str,
        of_several: Literal["livesum", "livemax"] = "livesum",
    ) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=of_several)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ["role"], buckets=_SECONDS, registry=self.registry)


class RoleTelemetry:
    """The metrics of one role's loop. Labels are resolved once: it is called for every record."""

    def __init__(self, families: Telemetry, role: str) -> None:
        self._families = families
        self._role = role
        self._handled: dict[str, Counter] = {}
        self._duration = families.duration.labels(role)
        self._queue = families.queue.labels(role)
        self._in = families.bytes.labels(role, "in")
        self._out = families.bytes.labels(role, "out")
        self._in_flight = families.in_flight.labels(role)
        self._held_bytes = families.held_bytes.labels(role)

    def handled(self, outcome: str, *, work_s: float, bytes_in: int, bytes_out: int) -> None:
        """One try of one record has ended."""
        counter = self._handled.get(outcome)
        if counter is None:
            counter = self._handled[outcome] = self._families.handled.labels(self._role, outcome)
        counter.inc()
        self._duration.observe(work_s)
        self._in.inc(bytes_in)
        self._out.inc(bytes_out)

    def queued(self, queue_s: float) -> None:
        self._queue.observe(queue_s)

    def unreadable(self, partition: TopicPartition) -> None:
        """Something there was set aside unread."""
        self._families.unreadable.labels(*self._labels(partition)).inc()

    def load(self, *, records: int, held_bytes: int) -> None:
        self._in_flight.set(records)
        self._held_bytes.set(held_bytes)

    def lag(self, partition: TopicPartition, records: int) -> None:
        self._families.lag.labels(*self._labels(partition)).set(records)

    def lost(self, partition: TopicPartition) -> None:
        """Another member reports its lag from now on."""
        labels = self._labels(partition)
        if isinstance(self._families.registry, FamilyRegistry):
            self._families.lag.labels(*labels).set(0)  # cannot be removed there, and adds nothing
            return
        with suppress(KeyError):
            self._families.lag.remove(*labels)

    def _labels(self, partition: TopicPartition) -> tuple[str, str, str]:
        return self._role, partition.topic, str(partition.partition)
