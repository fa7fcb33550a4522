"""Qwen2-VL, and what its successors share with it: any size, patch rows, one pad per embedding.

Knows no request; pixels are made by `workers.models.pixels`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from schemas.mm_item import Field
from schemas.refusals import bad_request
from workers.models import items
from workers.models.families import options as opt
from workers.models.families.adapter import (
    ModalityFacts,
    ModelFiles,
    Plan,
    VideoFacts,
    Vocabulary,
)
from workers.models.families.option_types import check_types
from workers.models.families.qwen_sizes import (
    float32_steps,
    is_resampled,
    smart_resize,
    vision_size,
    with_size,
)
from workers.render.media import Replacement, Span

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from workers.models.video import Video

MODEL_TYPES = ("qwen2_vl",)
MODALITIES = {
    "image": ModalityFacts(metadata=("image_grid_thw",), embeds=("image_embeds", "image_grid_thw")),
    "video": ModalityFacts(metadata=("video_grid_thw",), embeds=("video_embeds", "video_grid_thw")),
}

_CLIP_MEAN, _CLIP_STD = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
_IMAGE_DEFAULTS: dict[str, Any] = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255,
    "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, "resample": 3,
}  # fmt: skip
_VIDEO_DEFAULTS: dict[str, Any] = _IMAGE_DEFAULTS | {
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "min_frames": 4, "max_frames": 768, "fps": None, "num_frames": None,
}  # fmt: skip
_MAX_PATCHES_A_SIDE = 2**20
_EXTRA_KEYS = {"min_pixels", "max_pixels", "do_sample_frames"}
_GEOMETRY = ("patch_size", "temporal_patch_size", "merge_size")


@dataclass(frozen=True, slots=True)
class Geometry:
    """How pixels become patches and patches embeddings."""

    patch: int
    temporal: int
    merge: int

    @property
    def factor(self) -> int:
        return self.patch * self.merge


@dataclass(frozen=True, slots=True)
class Tokens:
    image: int
    video: int
    vision_start: int
    vision_end: int


class Qwen2VL:
    """See `Family`."""

    modalities: Mapping[str, ModalityFacts] = MODALITIES
    image_defaults: Mapping[str, Any] = _IMAGE_DEFAULTS
    video_defaults: Mapping[str, Any] = _VIDEO_DEFAULTS
    image_text = "<|image_pad|>"
    video_text = "<|video_pad|>"
    video_loader = "qwen2_vl"

    def __init__(
        self,
        files: ModelFiles,
        vocabulary: Vocabulary,
        *,
        server_options: Mapping[str, Any],
        raw_pixels: bool,
    ) -> None:
        self.dtype = files.dtype
        self.fingerprint = files.fingerprint
        self.vocabulary = vocabulary
        self.raw_pixels = raw_pixels
        self._server_options = server_options
        self.defaults = {
            "image": with_size(self.image_defaults, files.image_processor),
            "video": with_size(self.video_defaults, files.video_processor),
        }
        self.geometry = _geometry(self.defaults["image"])
        self.tokens = tokens_of(files.config, vocabulary)
        self.literals: Sequence[str] = (self.image_text, self.video_text)

    # --- prompt

    def placeholder(self, modality: str, index: int) -> str:
        del index
        pad = self.image_text if modality == "image" else self.video_text
        return f"<|vision_start|>{pad}<|vision_end|>"

    def target(self, modality: str) -> int:
        return self.tokens.image if modality == "image" else self.tokens.video

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        return ids, ranges

    # --- options

    def options(self, modality: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        check_types({**request, **opt.RAW_PIXELS} if self.raw_pixels else request)
        defaults = self.defaults[modality]
        chosen = opt.resolve(
            modality,
            {*defaults, *_EXTRA_KEYS},
            server=self._server_options,
            request=self.prepared(request),
            raw_pixels=self.raw_pixels,
        )
        for name in _GEOMETRY:
            if chosen.get(name, defaults[name]) != defaults[name]:
                raise bad_request(
                    f"{name} belongs to the model ({defaults[name]}) and cannot be changed"
                )
        return {**defaults, **chosen, "size": self.chosen_size(defaults["size"], chosen)}

    def for_item(
        self, modality: str, options: Mapping[str, Any], index: int, total: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        del modality, index, total
        return options, {}

    def prepared(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """A request's options before they meet the operator's."""
        return request

    def chosen_size(
        self, default: Mapping[str, int], chosen: Mapping[str, Any]
    ) -> Mapping[str, int]:
        """A size that is given has to be given whole."""
        size = opt.mapping(chosen.get("size", default), "size")
        if {"shortest_edge", "longest_edge"} != set(size):
            raise bad_request(f"size must have shortest_edge and longest_edge, got {dict(size)}")
        if None in (chosen.get("min_pixels", 1), chosen.get("max_pixels", 1)):
            raise bad_request("min_pixels and max_pixels must be whole numbers, got null")
        return vision_size(size, chosen)

    # --- images

    def plan_image(self, width: int, height: int, options: Mapping[str, Any]) -> Plan:
        if opt.flag(options["do_resize"], "do_resize"):
            size = options["size"]
            height, width = smart_resize(
                height, width, self.geometry.factor, size["shortest_edge"], size["longest_edge"]
            )
        return self._plan("image", 1, height, width)

    def process_image(
        self, image: "Image.Image", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        from workers.models import pixels

        height, width = plan.shape
        if (height, width) == (image.height, image.width):
            frames = pixels.of_planes(image)
        else:
            frames = pixels.resized_planes(image, height, width, options["resample"])
        return {"pixel_values": self._rows(frames, plan, options)}

    # --- videos

    def sample_frames(self, total: int, fps: float, kwargs: Mapping[str, Any]) -> list[int]:
        """Evenly in float32 steps, an even number of them (01 §6.4)."""
        if fps <= 0:
            raise bad_request("the video's frame rate is unknown, and frames are sampled by it")
        wanted = min(opt.real(kwargs.get("fps", 2), "fps"), 30)
        least = opt.integer(kwargs.get("min_frames", 4), "min_frames")
        most = min(opt.integer(kwargs.get("max_frames", 768), "max_frames"), 768)
        step = self.geometry.temporal
        most = min(most, total) // step * step
        count = min(max(total / fps * wanted, least), most, total)
        count = math.floor(count / step) * step
        if count <= 0:
            raise bad_request(f"a video of {total} frames is too short, at least {step} are needed")
        return float32_steps(total, count)

    def select_frames(
        self, metadata: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[int] | None:
        if not is_resampled(options):
            return None
        count = options["num_frames"]
        if count is None:
            raise bad_request("do_sample_frames needs num_frames for this model")
        return self.reduced(len(metadata["frames_indices"]), count)

    def reduced(self, total: int, count: int) -> list[int]:
        """A number of frames, made even, out of `total`."""
        step = self.geometry.temporal
        count = round(opt.integer(count, "num_frames") / step) * step
        if not 0 < count <= total:
            raise bad_request(f"{count} frames cannot be sampled from a video of {total}")
        return float32_steps(total, count)

    def plan_video(self, video: VideoFacts, options: Mapping[str, Any]) -> Plan:
        height, width = video.height, video.width
        if opt.flag(options["do_resize"], "do_resize"):
            size = options["size"]
            height, width = smart_resize(
                height, width, self.geometry.factor, size["shortest_edge"], size["longest_edge"]
            )
        return self._plan("video", self.temporal_groups(video.num_frames), height, width)

    def process_video(
        self, video: "Video", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        from workers.models import pixels

        rows = self._rows(pixels.of_frames(video.frames), plan, options)
        return {"pixel_values_videos": rows}

    def temporal_groups(self, num_frames: int) -> int:
        return -(-num_frames // self.geometry.temporal)

    # --- embeddings made elsewhere

    def plan_embeds(self, modality: str, fields: Mapping[str, Any]) -> Plan:
        grid = items.int_values(fields[f"{modality}_grid_thw"])
        merge, most = self.geometry.merge, _MAX_PATCHES_A_SIDE
        if len(grid) != 3 or min(grid) < 1 or max(grid) > most:
            raise bad_request(
                f"{modality}_grid_thw must be three positive numbers up to {most},"
                f" got {str(grid)[:80]}"
            )
        if grid[1] % merge or grid[2] % merge:
            raise bad_request(
                f"height and width of {modality}_grid_thw must be multiples of {merge}, got {grid}"
            )
        count, rows = math.prod(grid) // merge**2, len(fields[f"{modality}_embeds"])
        if rows != count:
            raise bad_request(f"{modality}_embeds has {rows} rows for {count} positions")
        metadata = {f"{modality}_grid_thw": items.batched_ints(grid, keep_on_cpu=True)}
        return Plan(Replacement(((self.target(modality), count),)), None, metadata)

    def embeds_field(self, embeds: "torch.Tensor") -> Field:
        return items.flat(embeds)

    # --- shared

    def _plan(self, modality: str, groups: int, height: int, width: int) -> Plan:
        if height % self.geometry.factor or width % self.geometry.factor:
            raise bad_request(
                f"without do_resize the sides of an {modality} must be multiples of"
                f" {self.geometry.factor}, got {width}x{height}"
            )
        grid = (groups, height // self.geometry.patch, width // self.geometry.patch)
        count = math.prod(grid) // self.geometry.merge**2
        return Plan(
            Replacement(((self.target(modality), count),)),
            None,
            {f"{modality}_grid_thw": items.batched_ints(grid, keep_on_cpu=True)},
            (height, width),
        )

    def _rows(self, frames: "torch.Tensor", plan: Plan, options: Mapping[str, Any]) -> Field:
        from workers.models import pixels

        height, width = plan.shape
        resized = pixels.resize(frames, height, width, options["resample"])
        values = pixels.cast_floats(pixels.rescale_and_normalize(resized, options), self.dtype)
        geometry = self.geometry
        cut = partial(
            pixels.patchify,
            values,
            patch=geometry.patch,
            merge=geometry.merge,
            temporal=geometry.temporal,
        )
        if values.is_floating_point():
            return items.flat(cut())
        groups = self.temporal_groups(len(values))
        rows = groups * (height // geometry.patch) * (width // geometry.patch)
        width = 3 * geometry.temporal * geometry.patch**2
        return items.flat_unwritten(rows, width, lambda out: cut(out=out))


def build(
    files: ModelFiles,
    vocabulary: Vocabulary,
    *,
    server_options: Mapping[str, Any],
    raw_pixels: bool,
) -> Qwen2VL:
    return Qwen2VL(files, vocabulary, server_options=server_options, raw_pixels=raw_pixels)


def tokens_of(config: Mapping[str, Any], vocabulary: Vocabulary) -> Tokens:
    """From config.json, else by their contents."""

    def find(key: str, content: str) -> int:
        value = config.get(key)
        found = value if isinstance(value, int) else vocabulary.token_id(content)
        return -1 if found is None else found

    return Tokens(
        image=find("image_token_id", "<|image_pad|>"),
        video=find("video_token_id", "<|video_pad|>"),
        vision_start=find("vision_start_token_id", "<|vision_start|>"),
        vision_end=find("vision_end_token_id", "<|vision_end|>"),
    )


def _geometry(defaults: Mapping[str, Any]) -> Geometry:
    return Geometry(defaults["patch_size"], defaults["temporal_patch_size"], defaults["merge_size"])
