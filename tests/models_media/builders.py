"""Model directories and pipelines for tests."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.settings import ModelSettings, RenderSettings
from runtime.storage import BlobStore, EncoderCache
from runtime.storage.memory_blobs import MemoryBlobs
from workers.models.limits import MediaLimits
from workers.models.media import MediaPipeline
from workers.render.media import MediaItem, MediaPart
from workers.text.tokenizer import Tokenizer

DATA = Path(__file__).parent.parent / "data"
QWEN = DATA / "models" / "tiny-qwen3-vl"
LLAVA = DATA / "models" / "tiny-llava"


def make_pipeline(
    *,
    folder: Path = QWEN,
    blobs: BlobStore | None = None,
    encoder_cache: EncoderCache | None = None,
    model: Mapping[str, Any] | None = None,
    render: Mapping[str, Any] | None = None,
    limits: MediaLimits | None = None,
) -> MediaPipeline:
    return MediaPipeline(
        ModelSettings(**{"model": str(folder), **(model or {})}),
        RenderSettings(**(render or {})),
        blobs or MemoryBlobs(),
        encoder_cache,
        vocabulary=Tokenizer.from_directory(folder),
        limits=limits,
    )


def image(url: str | None, uuid: str | None = None) -> MediaPart:
    return MediaPart("image", "url", "image_url", url, uuid)


def video(url: str | None, uuid: str | None = None) -> MediaPart:
    return MediaPart("video", "url", "video_url", url, uuid)


async def load(pipeline: MediaPipeline, *parts: MediaPart, **options: Any) -> list[MediaItem]:
    defaults: dict[str, Any] = {
        "mm_processor_kwargs": None, "media_io_kwargs": None, "tenant": "", "want_tensors": True,
    }  # fmt: skip
    return await pipeline.load(list(parts), **{**defaults, **options})


def make_model_folder(
    path: Path, *, config: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
) -> Path:
    """A model directory with the tokenizer of the small Qwen3-VL."""
    path.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(QWEN / name, path)
    (path / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return path
