"""The model families whose media we can render; adding one is adding its file to `_MODULES`.

Imports no torch. Knows no request.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from runtime.errors import SettingsError
from workers.models.families.adapter import Family, ModalityFacts, ModelFiles, Vocabulary

_MODULES: Mapping[str, str] = {
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "llava": "llava",
    "gemma3": "gemma3",
}
"""model_type of config.json to the module of its family."""

# What marks a configuration as multimodal, though its model_type is not in the table.
_MEDIA_KEYS = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower", "visual")


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """What a model takes besides text, for those who decide without model code."""

    family: str
    """Empty: text only."""
    modalities: Mapping[str, ModalityFacts]

    @property
    def with_metadata(self) -> frozenset[str]:
        """Modalities whose items have an `mm_metadata` entry."""
        return frozenset(name for name, facts in self.modalities.items() if facts.metadata)


def describe(model_dir: str | Path) -> MediaFacts:
    """Raise SettingsError for a multimodal model that nobody wrote an adapter for."""
    name = family_of(_read(Path(model_dir) / "config.json"))
    return MediaFacts(name, _module(name).MODALITIES if name else {})


def family_of(config: Mapping[str, Any]) -> str:
    """The family's module name; empty for a text-only model. SettingsError for an unknown one."""
    model_type = str(config.get("model_type", ""))
    if model_type in _MODULES:
        return _MODULES[model_type]
    if not any(config.get(key) for key in _MEDIA_KEYS):
        return ""
    raise SettingsError(
        f"no adapter for multimodal models of type {model_type!r};"
        f" supported: {', '.join(sorted(_MODULES))}, and any text-only model"
    )


def build_family(
    model_dir: str | Path,
    vocabulary: Vocabulary,
    *,
    dtype: str,
    server_options: Mapping[str, Any],
    raw_pixels: bool,
) -> Family | None:
    """The adapter of the model in a directory; None for a text-only one."""
    path = Path(model_dir)
    config = _read(path / "config.json")
    name = family_of(config)
    if not name:
        return None
    files = read_files(path, config, dtype)
    family: Family = _module(name).build(
        files, vocabulary, server_options=server_options, raw_pixels=raw_pixels
    )
    return family


def read_files(path: Path, config: Mapping[str, Any], dtype: str) -> ModelFiles:
    """Processor settings live in one file of their own each, or nested in processor_config.json."""
    processor = _read(path / "processor_config.json")
    image = processor.get("image_processor") or _read(path / "preprocessor_config.json")
    video = (
        processor.get("video_processor") or _read(path / "video_preprocessor_config.json") or image
    )
    return ModelFiles(config, image, video, processor, resolve_dtype(config, dtype))


def resolve_dtype(config: Mapping[str, Any], asked: str) -> str:
    """The dtype of float tensors: as asked, or the checkpoint's, where float32 becomes bfloat16."""
    if asked != "auto":
        return {"half": "float16", "float": "float32"}.get(asked, asked)
    own = _checkpoint_dtype(config)
    if own == "float32" or (own == "float16" and "gemma3" in str(config.get("model_type"))):
        return "bfloat16"
    return own


def _checkpoint_dtype(config: Mapping[str, Any]) -> str:
    for part in (config, config.get("text_config") or {}, config.get("vision_config") or {}):
        value = part.get("dtype") or part.get("torch_dtype")
        if value:
            return str(value).removeprefix("torch.")
    return "float32"


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path.name == "config.json":
            raise SettingsError(f"{path} is missing: not a model directory") from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}
