"""The media of every recorded request: hashes, placeholders, and each value of each tensor."""

import shutil
from pathlib import Path

import pytest

from runtime.storage.memory_blobs import MemoryBlobs
from tests.models_media.builders import DATA, LLAVA, QWEN
from tests.models_media.recordings import Case, differences, pipeline_for, run_case, unpack

CASES = unpack(DATA / "media" / "cases.json.gz")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large model is its small brother with other processor settings: all pixels need."""
    root = tmp_path_factory.mktemp("models")
    (root / "tiny-qwen3-vl").symlink_to(QWEN)
    (root / "tiny-llava").symlink_to(LLAVA)
    shutil.copytree(DATA / "media" / "qwen3-vl-render", root / "qwen3-vl-render")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(QWEN / name, root / "qwen3-vl-render")
    return root


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
async def test_media_come_out_as_recorded(case: Case, models: Path) -> None:
    blobs = MemoryBlobs()
    pipeline = pipeline_for(case, models, blobs)

    got = await run_case(case, pipeline)

    assert await differences(case, got, blobs) == []
    await pipeline.close()
