"""Errors of the machinery; what a request can do wrong is in `schemas.errors`.

FleetError
├── BusError            the transport is away (`retriable`), or will never take it (not)
│   ├── OwnershipLost   the partition moved: normal during a rebalance
│   └── Undeliverable   one of a handler's outputs can never be written
├── StoreError          the blob store or encoder cache failed: missing, damaged
│   ├── StoreAway       it does not answer; also an Away
│   └── StoreRefused    that name, or what lies there, can never work
└── SettingsError       start-up: one readable line, exit code 2
"""

from schemas.errors import Away, FleetError


class BusError(FleetError):
    """The transport did not take or give a record.

    Where it is `retriable`, it is waited for until `deadline_ms` (Unix milliseconds) at most.
    """

    deadline_ms: float | None = None

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


class OwnershipLost(BusError):
    """A commit for a partition that belongs to another member now."""


class Undeliverable(BusError):
    """The transport will not take a record on this topic, however often it is tried."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: {reason}", retriable=False)
        self.topic = topic


class StoreError(FleetError):
    """The store failed, or what it holds is not what was written."""


class StoreAway(StoreError, Away):
    """The store does not answer now."""


class StoreRefused(StoreError):
    """A name that no object can have, or one where something else lies: poison, not a wait."""


class SettingsError(FleetError):
    """A setting, a model directory or an environment the process cannot start with."""


def is_away(error: BaseException) -> bool:
    """Whether to wait for the store or the broker, rather than to blame the record."""
    return isinstance(error, Away) or (isinstance(error, BusError) and error.retriable)
