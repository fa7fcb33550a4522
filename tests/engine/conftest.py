import pytest

from tests.engine.builders import MODELS, Fleet


@pytest.fixture
async def fleet(tmp_path):
    fleet = Fleet(MODELS / "tiny-qwen3-vl", tmp_path / "ec")
    await fleet.start()
    yield fleet
    await fleet.close()
