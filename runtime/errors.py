"""Errors of the machinery; what a request can do wrong is in `schemas.errors`.

FleetError
├── BusError            the transport refused or is away
│   └── OwnershipLost   the partition moved: normal during a rebalance
├── StoreError          the blob store or encoder cache failed
└── SettingsError       start-up: one readable line, exit code 2
"""

from schemas.errors import FleetError


class BusError(FleetError):
    """The transport did not take or give a record."""

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


class OwnershipLost(BusError):
    """A commit for a partition that belongs to another member now."""


class StoreError(FleetError):
    """The store did not answer, or what it holds is not what was written."""


class SettingsError(FleetError):
    """A setting, a model directory or an environment the process cannot start with."""
