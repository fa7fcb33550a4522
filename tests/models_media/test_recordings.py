"""The media of recorded requests: hashes, placeholders, and each value of each tensor.

`cases` holds those of the models the whole fleet is tested with, `families` some for each further
family; their weightless directories lie beside them.
"""

import shutil
from pathlib import Path

import pytest

from runtime.storage.memory_blobs import MemoryBlobs
from tests.models_media.builders import DATA, LLAVA, QWEN
from tests.models_media.recordings import Case, differences, pipeline_for, run_case, unpack

MEDIA = DATA / "media"
CASES = [*unpack(MEDIA / "cases.json.gz"), *unpack(MEDIA / "families.json.gz")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories without a tokenizer get that of a small relative."""
    root = tmp_path_factory.mktemp("models")
    (root / QWEN.name).symlink_to(QWEN)
    (root / LLAVA.name).symlink_to(LLAVA)
    for folder in (path for path in MEDIA.iterdir() if path.is_dir()):
        shutil.copytree(folder, root / folder.name)
        relative = LLAVA if "llava" in folder.name else QWEN
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / name).exists():
                shutil.copy(relative / name, root / folder.name)
    return root


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
async def test_media_come_out_as_recorded(case: Case, models: Path) -> None:
    blobs = MemoryBlobs()
    pipeline = pipeline_for(case, models, blobs)

    got = await run_case(case, pipeline)

    assert await differences(case, got, blobs) == []
    await pipeline.close()
