"""What an engine must know of a model beside its weights: lengths, stops and embedding layout.

Loads no torch and no weights. Knows no requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.model_dir import ModelDirectory
from runtime.settings import ModelSettings

MAX_COUNT = 2**20
"""Of patches along a side, time steps or crops."""


@dataclass(frozen=True, slots=True)
class ModalityLayout:
    """How items of one modality of one model family are made and where their rows go."""

    pixels: str
    """The field that holds the encoder's input."""
    embeds: str | None = None
    """The field that brings finished embeddings instead."""
    grid: str | None = None
    """The field with [t, h, w] patches; rows = t x h x w / merge²."""
    patches: str | None = None
    """The field that counts image crops; rows = crops x tokens per crop."""
    metadata: tuple[str, ...] = ()
    """Fields that say how long the placeholder is (02 §6)."""
    pad: str | None = None
    """Key of the configuration with the id of the tokens that rows replace, for ranges that mix
    them with others; None: the whole range is rows."""
    splits_time: bool = False
    """Whether each time step of the grid is a run of its own."""


def _qwen(video_metadata: tuple[str, ...] = (), **video: Any) -> dict[str, ModalityLayout]:
    image, grid = "image_grid_thw", "video_grid_thw"
    return {
        "image": ModalityLayout(
            pixels="pixel_values", embeds="image_embeds", grid=image, metadata=(image,)
        ),
        "video": ModalityLayout(
            pixels="pixel_values_videos",
            embeds="video_embeds",
            grid=grid,
            metadata=(grid, *video_metadata),
            **video,
        ),
    }


_QWEN3 = _qwen(("timestamps",), pad="video_token_id", splits_time=True)

FAMILIES: dict[str, dict[str, ModalityLayout]] = {
    "qwen2_vl": _qwen(),
    "qwen2_5_vl": _qwen(("second_per_grid_ts",)),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "llava": {"image": ModalityLayout(pixels="pixel_values", embeds="image_embeds")},
    "gemma3": {
        "image": ModalityLayout(
            pixels="pixel_values",
            patches="num_patches",
            metadata=("num_patches",),
            pad="image_token_id",
        )
    },
}
"""By `model_type`; any other model is text only."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model, as its files describe it (`facts_of`)."""

    directory: Path
    model_type: str
    config: Mapping[str, Any]
    vocab_size: int
    hidden_size: int
    max_model_len: int
    eos_token_id: int | None
    """The tokenizer's own."""
    more_eos_ids: tuple[int, ...] = ()
    """Others of the generation configuration."""
    default_max_tokens: int | None = None
    override_max_tokens: int | None = None
    modalities: Mapping[str, ModalityLayout] = field(default_factory=dict)

    @property
    def deepstack_layers(self) -> int:
        return len(self._vision.get("deepstack_visual_indexes") or ())

    @property
    def embedding_width(self) -> int:
        """Width of an entry of the encoder cache."""
        return self.hidden_size * (1 + self.deepstack_layers)

    @property
    def merge_size(self) -> int:
        """Patches per side that make one embedding."""
        return int(self._vision.get("spatial_merge_size", 1))

    @property
    def tokens_per_second(self) -> float | None:
        """Temporal positions per second of video, where the family scales them by time."""
        return self._vision.get("tokens_per_second", 4) if self.model_type == "qwen2_5_vl" else None

    @property
    def uses_grid_positions(self) -> bool:
        return any(layout.grid for layout in self.modalities.values())

    @property
    def tokens_per_patch(self) -> int:
        return int(self.config.get("mm_tokens_per_image", 256))

    @property
    def _vision(self) -> Mapping[str, Any]:
        return self.config.get("vision_config") or {}

    def num_rows(self, modality: str, metadata: Mapping[str, Any]) -> int | None:
        """Embedding rows of an item by its metadata; None where it does not tell.

        ValueError or TypeError for metadata of another form.
        """
        layout = self.modalities[modality]
        if layout.grid is not None and layout.grid in metadata:
            t, h, w = self.grid_of(layout.grid, metadata[layout.grid])
            return t * h * w // self.merge_size**2
        if layout.patches is not None and layout.patches in metadata:
            return _first(layout.patches, metadata[layout.patches]) * self.tokens_per_patch
        return None

    def grid_of(self, name: str, value: Any) -> tuple[int, int, int]:
        """Patches [t, h, w] of an item's metadata. ValueError for what is no grid of this model."""
        if not isinstance(value, list) or len(value) != 3 or not all(map(_is_count, value)):
            raise ValueError(f"{name} must be three positive whole numbers, got {_shown(value)}")
        t, h, w = value
        if h % self.merge_size or w % self.merge_size:
            raise ValueError(
                f"height and width of {name} must be multiples of {self.merge_size}, got {value}"
            )
        return t, h, w

    def default_runs(
        self, modality: str, offset: int, length: int, token_ids: Sequence[int]
    ) -> tuple[tuple[int, int], ...]:
        """Absolute (start, length) runs of embeddings in a range for which none were given.

        Only families that mix other tokens into the range (02 §1.1) look at its ids.
        """
        pad = self.modalities[modality].pad
        if pad is None or self.config.get(pad) is None:
            return ((offset, length),)
        wanted = self.config[pad]
        hits = [i for i in range(offset, offset + length) if token_ids[i] == wanted]
        return tuple(_runs(hits))


def _first(name: str, value: Any) -> int:
    count = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not _is_count(count):
        raise ValueError(f"{name} must be a positive whole number, got {_shown(value)}")
    return int(count)


def _is_count(value: Any) -> bool:
    """Bounded, because it is computed with in 64 bit."""
    return type(value) is int and 0 < value < MAX_COUNT


def _shown(value: Any) -> str:
    return str(value)[:80]


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and sum(runs[-1]) == position:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs


def facts_of(
    model: ModelDirectory,
    settings: ModelSettings,
    *,
    config: Mapping[str, Any],
    eos_token_id: int | None,
) -> ModelFacts:
    """`config`: with the defaults that published files leave out (`loading.complete_config`).

    `eos_token_id`: the tokenizer's; without one, the configuration's first counts.
    """
    text = config.get("text_config") or config
    configured = _as_ids(text.get("eos_token_id"))
    eos = eos_token_id if eos_token_id is not None else next(iter(configured), None)
    override = settings.override_generation_config
    generation = {
        **({} if settings.generation_config == "vllm" else model.generation_config),
        **override,
    }
    is_custom = settings.generation_config not in ("auto", "vllm")
    return ModelFacts(
        directory=model.path,
        model_type=model.model_type,
        config=_with_image_token(config),
        vocab_size=int(text["vocab_size"]),
        hidden_size=int(text["hidden_size"]),
        max_model_len=model.max_model_len,
        eos_token_id=eos,
        more_eos_ids=tuple(i for i in _as_ids(generation.get("eos_token_id")) if i != eos),
        default_max_tokens=generation.get("max_new_tokens"),
        override_max_tokens=(generation if is_custom else override).get("max_new_tokens"),
        modalities=FAMILIES.get(model.model_type, {}),
    )


def _with_image_token(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Older configurations call the same id `image_token_index`."""
    if config.get("image_token_id") is not None or "image_token_index" not in config:
        return config
    return {**config, "image_token_id": config["image_token_index"]}


def _as_ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else value
