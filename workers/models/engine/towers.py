"""Vision towers: from one item's decoded fields to its embedding rows, per model family.

Everything a family does differently when encoding is here, as one function each. Knows no requests
and no cache.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import ApiError
from workers.models.engine.loading import LoadedModel

Fields = Mapping[str, Tensor]
Tower = Callable[[LoadedModel, str, Fields], Tensor]


def encode_item(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    """Rows [num_embeds, width] of one item, on the device. ApiError where fields do not fit."""
    layout = model.facts.modalities.get(modality)
    if layout is None:
        raise ApiError(f"This model takes no {modality} items.")
    if layout.embeds is not None and layout.embeds in fields:
        return _finished_rows(model, layout.embeds, fields)
    _require(fields, layout.pixels, layout.grid)
    with torch.inference_mode():
        return _TOWERS[model.facts.model_type](model, modality, fields)


def _finished_rows(model: LoadedModel, name: str, fields: Fields) -> Tensor:
    rows = fields[name]
    if rows.ndim != 2 or rows.shape[1] != model.facts.embedding_width:
        raise ApiError(
            f"{name} must be [rows, {model.facts.embedding_width}], got {list(rows.shape)}.",
            param=name,
        )
    return rows.to(model.device, model.dtype)


def _require(fields: Fields, *names: str | None) -> None:
    for name in names:
        if name is not None and name not in fields:
            raise ApiError(f"The item lacks the encoder input {name!r}.", param="kwargs_data")


def _qwen(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    layout = model.facts.modalities[modality]
    pixels, grid = fields[layout.pixels], fields[str(layout.grid)].reshape(-1, 3)
    patches = int(grid.prod(-1).sum())
    if pixels.ndim != 2 or pixels.shape[0] != patches:
        raise ApiError(
            f"{layout.pixels} of shape {list(pixels.shape)} does not hold the {patches} patches "
            f"of its grid {grid.tolist()}.",
            param="kwargs_data",
        )
    pixels = _normalised(model, modality, pixels)
    found = model.module.model.get_image_features(pixels, grid.to(model.device))
    layers = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    return torch.cat([torch.cat(list(layer)) for layer in layers], dim=-1)


def _llava(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    pixels = fields["pixel_values"].to(model.device, model.dtype)
    found = model.module.model.get_image_features(pixels.reshape(1, *pixels.shape[-3:]))
    return torch.cat(list(found.pooler_output))


def _gemma3(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    pixels = fields["pixel_values"].to(model.device, model.dtype)
    found = model.module.model.get_image_features(pixels.reshape(-1, *pixels.shape[-3:]))
    rows: Tensor = found.pooler_output.flatten(0, 1)
    return rows


_TOWERS: dict[str, Tower] = {
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "llava": _llava,
    "gemma3": _gemma3,
}


def _normalised(model: LoadedModel, modality: str, patches: Tensor) -> Tensor:
    """Floats as the tower expects them; integer pixels are rescaled and normalised here (02 §5.1).

    A patch row is [channels, time, height, width] flattened.
    """
    if patches.dtype.is_floating_point:
        return patches.to(model.device, model.dtype)
    mean, std = (
        torch.tensor(values, device=model.device).reshape(1, -1, 1)
        for values in _mean_and_std(model, modality)
    )
    values = patches.to(model.device, torch.float32).reshape(len(patches), mean.shape[1], -1)
    return ((values - mean * 255) / (std * 255)).flatten(1).to(model.dtype)


_CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
_CLIP_STD = [0.26862954, 0.26130258, 0.27577711]


def _mean_and_std(model: LoadedModel, modality: str) -> tuple[list[float], list[float]]:
    """From the processor's files; Qwen2's defaults where they name none."""
    config = {
        **_read_json(model.facts.directory / "preprocessor_config.json"),
        **(
            _read_json(model.facts.directory / "video_preprocessor_config.json")
            if modality == "video"
            else {}
        ),
    }
    return config.get("image_mean", _CLIP_MEAN), config.get("image_std", _CLIP_STD)


@cache
def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.exists() else {}
