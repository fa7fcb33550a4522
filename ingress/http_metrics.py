"""Prometheus figures of the HTTP front. Knows no routes but the list it is given."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
QUIET = frozenset({"/health", "/ping", "/ready", "/load", "/version", "/metrics"})
"""Probes: not counted, or they would drown the rest."""
IN_FLIGHT = "tokenfleet_ingress_in_flight"
OTHER = "none"
"""Handler of paths that are no route: callers must not be able to make label values."""


class HttpMetrics:
    """One per application; the names are those of vLLM's server."""

    def __init__(self, registry: CollectorRegistry, paths: Iterable[str]) -> None:
        self._handlers = {path: path for path in paths}
        self._requests = Counter(
            "http_requests",
            "Responses by method, status class and route.",
            ["method", "status", "handler"],
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "From the head of a request to the end of its response.",
            ["method", "handler"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._waiting = Gauge(
            IN_FLIGHT,
            "Requests that wait for an outcome.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def in_flight(self, num_waiting: int) -> None:
        """Told, not asked for: another process behind the same port may be the one to show it."""
        self._waiting.set(num_waiting)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        if path in QUIET:
            return
        handler = self._handlers.get(path, OTHER)
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._seconds.labels(method, handler).observe(seconds)
