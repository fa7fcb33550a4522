"""Vision towers: from one item's decoded fields to its embedding rows, per model family.

Everything a family does differently when encoding is here, as one function each. Knows no requests
and no cache.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from schemas.errors import ApiError
from schemas.mm_item import NUMBER_DTYPES
from workers.models.engine.facts import MAX_COUNT
from workers.models.engine.finite import require_finite
from workers.models.engine.loading import LoadedModel
from workers.models.families import read_files
from workers.models.families.adapter import ModelFiles

Fields = Mapping[str, Tensor]
Tower = Callable[[LoadedModel, str, Fields], Tensor]


def encode_item(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    """Rows [num_embeds, width] of one item, on the device. ApiError where fields do not fit."""
    layout = model.facts.modalities.get(modality)
    if layout is None:
        raise ApiError(f"This model takes no {modality} items.")
    _require_numbers(fields, layout.pixels, layout.embeds)
    if layout.embeds is not None and layout.embeds in fields:
        return _finished_rows(model, layout.embeds, fields)
    _require(fields, layout.pixels, layout.grid)
    with torch.inference_mode():
        return _TOWERS[model.facts.model_type](model, modality, fields)


def _finished_rows(model: LoadedModel, name: str, fields: Fields) -> Tensor:
    rows = fields[name]
    if not rows.is_floating_point():
        raise ApiError(f"{name} must be floating point numbers.", param="kwargs_data")
    if rows.ndim != 2 or rows.shape[1] != model.facts.embedding_width:
        raise ApiError(
            f"{name} must be [rows, {model.facts.embedding_width}], got {list(rows.shape)}.",
            param=name,
        )
    return rows.to(model.device, model.dtype)


def _require_numbers(fields: Fields, *names: str | None) -> None:
    """What came from outside is checked at the edge too, but not every way in has the same."""
    for name in names:
        if name is None or name not in fields:
            continue
        dtype = str(fields[name].dtype).removeprefix("torch.")
        if dtype not in NUMBER_DTYPES:
            raise ApiError(f"{name} cannot be of dtype {dtype}.", param="kwargs_data")
        require_finite(fields[name], name, by_caller=True)


def _require(fields: Fields, *names: str | None) -> None:
    for name in names:
        if name is not None and name not in fields:
            raise ApiError(f"The item lacks the encoder input {name!r}.", param="kwargs_data")


def _qwen(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    layout = model.facts.modalities[modality]
    pixels, grid = fields[layout.pixels], _grid(model, fields[str(layout.grid)])
    vision = model.module.config.vision_config
    channels = getattr(vision, "in_channels", 3)
    width = channels * vision.temporal_patch_size * vision.patch_size**2
    _require_shape(layout.pixels, pixels, (int(grid.prod(-1).sum()), width))
    pixels = _normalised(model, modality, pixels)
    found = model.module.model.get_image_features(pixels, grid.to(model.device))
    layers = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    return torch.cat([torch.cat(list(layer)) for layer in layers], dim=-1)


def _llava(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    pixels = fields["pixel_values"]
    _require_shape("pixel_values", pixels, _image_shape(model))
    found = model.module.model.get_image_features(_floats(model, pixels).unsqueeze(0))
    return torch.cat(list(found.pooler_output))


def _gemma3(model: LoadedModel, modality: str, fields: Fields) -> Tensor:
    pixels = fields["pixel_values"]
    crops = pixels.shape[0] if pixels.ndim == 4 else 1
    _require_shape("pixel_values", pixels, (crops, *_image_shape(model)))
    found = model.module.model.get_image_features(_floats(model, pixels))
    rows: Tensor = found.pooler_output.flatten(0, 1)
    return rows


def _grid(model: LoadedModel, grid: Tensor) -> Tensor:
    """int64 [items, 3], every entry a possible number of patches."""
    merge = model.facts.merge_size
    is_whole = not grid.dtype.is_floating_point and grid.numel() in (3, 6, 9, 12)
    counts = grid.long() if is_whole else grid
    is_possible = is_whole and bool(((counts > 0) & (counts < MAX_COUNT)).all())
    if not is_possible or bool((counts.reshape(-1, 3)[:, 1:] % merge).any()):
        raise ApiError(f"{grid.flatten()[:12].tolist()} is no grid of patches.", param="kwargs_data")
    return counts.reshape(-1, 3)


def _image_shape(model: LoadedModel) -> tuple[int, ...]:
    vision = model.module.config.vision_config
    return (getattr(vision, "num_channels", 3), vision.image_size, vision.image_size)


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Checked here, because inside a tower a wrong shape is an error without a name."""
    if tuple(tensor.shape) != shape:
        raise ApiError(
            f"{name} must have the shape {list(shape)}, got {list(tensor.shape)}.",
            param="kwargs_data",
        )


def _floats(model: LoadedModel, pixels: Tensor) -> Tensor:
    return pixels.to(model.device, model.dtype)


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
        return _floats(model, patches)
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
    files = _files(model.facts.directory)
    config = files.video_processor if modality == "video" else files.image_processor
    return config.get("image_mean", _CLIP_MEAN), config.get("image_std", _CLIP_STD)


@cache
def _files(directory: Path) -> ModelFiles:
    return read_files(directory, {}, "auto")
