"""LLaVA 1.5: one size, one number of image tokens, and nothing but the pixels on the wire."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runtime.errors import SettingsError
from schemas.mm_item import Field
from schemas.refusals import bad_request
from workers.models import items
from workers.models.families import options as opt
from workers.models.families.areas import check_area
from workers.models.families.adapter import (
    ModalityFacts,
    ModelFiles,
    Plan,
    VideoFacts,
    Vocabulary,
)
from workers.render.media import Replacement, Span

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from workers.models.video import Video

MODEL_TYPES = ("llava",)
MODALITIES = {"image": ModalityFacts(metadata=(), embeds=("image_embeds",))}

_DEFAULTS: Mapping[str, Any] = {
    "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224},
    "do_resize": True, "do_center_crop": True, "do_rescale": True, "do_normalize": True,
    "rescale_factor": 1 / 255, "resample": 3,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}  # fmt: skip
_SIGLIP_DEFAULTS: Mapping[str, Any] = {
    **_DEFAULTS, "size": {"height": 224, "width": 224}, "do_center_crop": False,
    "image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5),
}  # fmt: skip
_TOWERS_WITH_CLASS_TOKEN = frozenset({"clip_vision_model"})
_TOWERS = _TOWERS_WITH_CLASS_TOKEN | {"siglip_vision_model"}


class Llava:
    """See `Family`."""

    modalities: Mapping[str, ModalityFacts] = MODALITIES
    video_loader = ""

    def __init__(
        self, files: ModelFiles, vocabulary: Vocabulary, *, server_options: Mapping[str, Any]
    ) -> None:
        self._dtype = files.dtype
        self.fingerprint = files.fingerprint
        self._server_options = server_options
        self._defaults = _defaults(files.image_processor)
        self._text = str(files.processor.get("image_token") or "<image>")
        self._token = _image_token(files.config, vocabulary, self._text)
        self._count = _count_tokens(files)
        self._width = int((files.config.get("text_config") or {}).get("hidden_size", 4096))
        self.literals: Sequence[str] = (self._text,)

    def placeholder(self, modality: str, index: int) -> str:
        del modality, index
        return self._text

    def target(self, modality: str) -> int:
        del modality
        return self._token

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        return ids, ranges

    def options(self, modality: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        chosen = opt.resolve(
            modality,
            self._defaults,
            server=self._server_options,
            request=request,
            raw_pixels=False,
        )
        return {**self._defaults, **chosen}

    def for_item(
        self, modality: str, options: Mapping[str, Any], index: int, total: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        del modality, index, total
        return options, {}

    def plan_image(self, width: int, height: int, options: Mapping[str, Any]) -> Plan:
        if opt.flag(options["do_resize"], "do_resize"):
            check_area(*_target(height, width, options["size"]))
        if opt.flag(options["do_center_crop"], "do_center_crop"):
            check_area(*_cropped_to(options["crop_size"]))
        return Plan(self._pads(self._count), None, shape=(height, width))

    def process_image(
        self, image: "Image.Image", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        from workers.models import pixels

        del plan
        values = pixels.of_image(image)
        if opt.flag(options["do_resize"], "do_resize"):
            values = pixels.resize(
                values, *_target(image.height, image.width, options["size"]), options["resample"]
            )
        values = self._cropped(values, options)
        values = pixels.cast_floats(pixels.rescale_and_normalize(values, options), self._dtype)
        return {"pixel_values": items.batched(values[0])}

    def _cropped(self, values: "torch.Tensor", options: Mapping[str, Any]) -> "torch.Tensor":
        from workers.models import pixels

        if not opt.flag(options["do_center_crop"], "do_center_crop"):
            return values
        return pixels.center_crop(values, *_cropped_to(options["crop_size"]))

    def sample_frames(self, total: int, fps: float, kwargs: Mapping[str, Any]) -> list[int]:
        raise bad_request("this model takes no videos")

    def select_frames(
        self, metadata: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[int] | None:
        raise bad_request("this model takes no videos")

    def plan_video(self, video: VideoFacts, options: Mapping[str, Any]) -> Plan:
        raise bad_request("this model takes no videos")

    def process_video(
        self, video: "Video", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        raise bad_request("this model takes no videos")

    def plan_embeds(self, modality: str, fields: Mapping[str, Any]) -> Plan:
        del modality
        rows, width = fields["image_embeds"].shape
        if width != self._width:
            raise bad_request(
                f"Image embedding hidden dimension mismatch: got {width}, but model expects"
                f" {self._width}."
            )
        return Plan(self._pads(rows), None)

    def embeds_field(self, embeds: "torch.Tensor") -> Field:
        return items.batched(embeds)

    def _pads(self, count: int) -> Replacement:
        return Replacement(((self._token, count),))


def build(
    files: ModelFiles,
    vocabulary: Vocabulary,
    *,
    server_options: Mapping[str, Any],
    raw_pixels: bool,
) -> Llava:
    del raw_pixels  # the tower takes normalised pixels, whatever the operator prefers
    return Llava(files, vocabulary, server_options=server_options)


def _defaults(configured: Mapping[str, Any]) -> dict[str, Any]:
    """The processor's settings; what its file leaves out depends on its kind."""
    is_siglip = "siglip" in str(configured.get("image_processor_type", "")).lower()
    own = {k: v for k, v in configured.items() if k in _DEFAULTS and v is not None}
    return {**(_SIGLIP_DEFAULTS if is_siglip else _DEFAULTS), **own}


def _image_token(config: Mapping[str, Any], vocabulary: Vocabulary, text: str) -> int:
    for key in ("image_token_index", "image_token_id"):
        if isinstance(config.get(key), int):
            return int(config[key])
    found = vocabulary.token_id(text)
    if found is None:
        raise SettingsError(f"the tokenizer has no image token {text!r}")
    return found


def _count_tokens(files: ModelFiles) -> int:
    """Patches of the one size, with the class token where the tower has one that is not dropped."""
    vision, strategy = files.vision, files.config.get("vision_feature_select_strategy", "default")
    tower = vision.get("model_type", "clip_vision_model")
    if tower not in _TOWERS:
        raise SettingsError(f"LLaVA with a {tower} tower is not supported (only {sorted(_TOWERS)})")
    patches = (int(vision["image_size"]) // int(vision["patch_size"])) ** 2
    patches += tower in _TOWERS_WITH_CLASS_TOKEN
    if strategy == "full":
        return patches
    return patches - 1


def _cropped_to(size: Any) -> tuple[int, int]:
    """(height, width)."""
    return (size, size) if isinstance(size, int) else opt.sides(size, "crop_size")


def _target(height: int, width: int, size: Any) -> tuple[int, int]:
    """(height, width) for a `size` in any of the forms processors use."""
    if isinstance(size, int):
        size = {"shortest_edge": size}
    if "shortest_edge" not in opt.mapping(size, "size"):
        return opt.sides(size, "size")
    short = opt.integer(size.get("shortest_edge"), "size.shortest_edge")
    long = int(short * max(height, width) / min(height, width))
    return (long, short) if width <= height else (short, long)
