from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from workers.derender.model import TextModel
from workers.derender.stage import DerenderStage

from .builders import LLAVA, QWEN, make_model, make_stage


@pytest.fixture(scope="session")
def qwen() -> TextModel:
    """Bytes as pieces, and special tokens that its configuration does not name."""
    return make_model(QWEN)


@pytest.fixture(scope="session")
def llava() -> TextModel:
    """SentencePiece: spaces at the start of pieces, bytes as fallback."""
    return make_model(LLAVA)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    stages: list[DerenderStage] = []

    async def make(model: str = QWEN, **options: Any) -> DerenderStage:
        stages.append(await make_stage(model, **options))
        return stages[-1]

    yield make
    for stage in stages:
        await stage.close()
