from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fleet.embedded import Embedded, Running, whole_fleet


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Embedded]:
    """A fresh fleet on the memory bus."""
    async with Running(whole_fleet(tmp_path / "ec"), tmp_path / "ec") as running:
        yield running
