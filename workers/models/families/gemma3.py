"""Gemma 3: an image is a fixed number of soft tokens between markers and newlines; maybe crops.

The replaced range holds more than embeddings, and its outer newlines melt with those around it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
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

MODALITIES = {"image": ModalityFacts(metadata=("num_patches",))}

_DEFAULTS: Mapping[str, Any] = {
    "size": {"height": 224, "width": 224}, "resample": 2,
    "do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255,
    "image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5),
}  # fmt: skip
# The model's own files have no say in these; the operator's flag and the request do.
_CROPPING: Mapping[str, Any] = {
    "do_pan_and_scan": False, "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip
_BEGIN, _SOFT, _END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


class Gemma3:
    """See `Family`."""

    modalities: Mapping[str, ModalityFacts] = MODALITIES
    literals: Sequence[str] = (_BEGIN, _SOFT)
    video_loader = ""

    def __init__(
        self, files: ModelFiles, vocabulary: Vocabulary, *, server_options: Mapping[str, Any]
    ) -> None:
        self.fingerprint = files.fingerprint
        self._dtype = files.dtype
        self._server_options = server_options
        own = {k: v for k, v in files.image_processor.items() if k in _DEFAULTS and v is not None}
        self._defaults = {**_DEFAULTS, **_CROPPING, **own}
        self._vocabulary = vocabulary
        self._begin = _token(files.config, vocabulary, "boi_token_index", _BEGIN)
        self._soft = _token(files.config, vocabulary, "image_token_index", _SOFT)
        self._end = _token(files.config, vocabulary, "eoi_token_index", _END)
        self._count = int(
            files.processor.get("image_seq_length")
            or files.config.get("mm_tokens_per_image")
            or 256
        )
        self._melting = _melting(vocabulary)
        self._replacement = lru_cache(maxsize=16)(self._written)

    # --- prompt

    def placeholder(self, modality: str, index: int) -> str:
        del modality, index
        return _BEGIN

    def target(self, modality: str) -> int:
        del modality
        return self._begin

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        """Newlines written next to newlines become the token a tokenizer would have made of both.

        A range begins with the melted token; of two images side by side the second has it (vLLM
        lets such ranges overlap and then refuses them).
        """
        for first, second, melted in self._melting:
            ids, moved = _melt(ids, first, second, melted)
            ranges = [(moved[start], length) for start, length in ranges]
        return ids, _disjoint(ranges)

    def _written(self, num_crops: int) -> tuple[Replacement, list[Span]]:
        """All tokens for an image with crops, and where its soft tokens are."""
        ids: list[int] = []
        for piece in _pieces(num_crops):
            ids += self._one_image() if piece is None else self._encode(piece)
        runs = tuple((token, len(list(same))) for token, same in itertools.groupby(ids))
        return Replacement(runs), _spans_of(runs, self._soft)

    def _one_image(self) -> list[int]:
        around = self._encode("\n\n")
        return [*around, self._begin, *[self._soft] * self._count, self._end, *around]

    def _encode(self, text: str) -> list[int]:
        return list(self._vocabulary.encode(text, add_special_tokens=False))

    # --- images

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
        if opt.flag(options["do_resize"], "do_resize") or options["do_pan_and_scan"]:
            check_area(*opt.sides(options["size"], "size"))
        columns, rows = _crops(width, height, options)
        num_crops = columns * rows
        replacement, embeds = self._replacement(num_crops)
        metadata = {"num_patches": items.batched_ints(num_crops + 1, keep_on_cpu=True)}
        return Plan(replacement, embeds, metadata, (columns, rows))

    def process_image(
        self, image: "Image.Image", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        from workers.models import pixels

        columns, rows = plan.shape
        whole = pixels.of_image(image)
        pictures = [whole, *_cut(whole, columns, rows)]
        # With cropping on, the reference resizes whatever do_resize says.
        if opt.flag(options["do_resize"], "do_resize") or options["do_pan_and_scan"]:
            height, width = opt.sides(options["size"], "size")
            pictures = [
                pixels.resize(p.contiguous(), height, width, options["resample"]) for p in pictures
            ]
        values = pixels.rescale_and_normalize(pixels.stack(pictures), options)
        return {"pixel_values": items.flat(pixels.cast_floats(values, self._dtype))}

    # --- what this family does not take

    def sample_frames(self, total: int, fps: float, kwargs: Mapping[str, Any]) -> list[int]:
        raise _no_video()

    def select_frames(
        self, metadata: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[int] | None:
        raise _no_video()

    def plan_video(self, video: VideoFacts, options: Mapping[str, Any]) -> Plan:
        raise _no_video()

    def process_video(
        self, video: "Video", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        raise _no_video()

    def plan_embeds(self, modality: str, fields: Mapping[str, Any]) -> Plan:
        raise bad_request("this model takes no embeddings made elsewhere")

    def embeds_field(self, embeds: "torch.Tensor") -> Field:
        raise bad_request("this model takes no embeddings made elsewhere")


def build(
    files: ModelFiles,
    vocabulary: Vocabulary,
    *,
    server_options: Mapping[str, Any],
    raw_pixels: bool,
) -> Gemma3:
    del raw_pixels  # the tower takes normalised pixels, whatever the operator prefers
    return Gemma3(files, vocabulary, server_options=server_options)


def _no_video() -> Exception:
    return bad_request("this model takes no videos")


def _token(config: Mapping[str, Any], vocabulary: Vocabulary, key: str, content: str) -> int:
    value = config.get(key)
    found = value if isinstance(value, int) else vocabulary.token_id(content)
    if found is None:
        raise SettingsError(f"neither config.json has {key!r} nor the tokenizer {content!r}")
    return found


def _pieces(num_crops: int) -> list[str | None]:
    """What is written for an image; None stands for one picture."""
    if num_crops == 0:
        return [None]
    crops: list[str | None] = [None]
    for _ in range(num_crops - 1):
        crops += [" ", None]
    before = "Here is the original image "
    between = " and here are some crops to help you see better "
    return [before, None, between, *crops]


def _spans_of(runs: Sequence[tuple[int, int]], token: int) -> list[Span]:
    spans: list[Span] = []
    position = 0
    for found, count in runs:
        if found == token:
            spans.append((position, count))
        position += count
    return spans


def _melting(vocabulary: Vocabulary) -> list[tuple[int, int, int]]:
    """(first, second, melted) for neighbouring newline tokens, in the order of application."""
    found = [vocabulary.token_id("\n" * count) for count in range(1, 5)]
    one, two, three, four = (-1 if token is None else token for token in found)
    if min(one, two, three, four) < 0:
        return []
    return [(one, two, three), (two, one, three), (two, two, four)]


def _melt(ids: list[int], first: int, second: int, melted: int) -> tuple[list[int], list[int]]:
    """The tokens afterwards, and where each old position went."""
    out: list[int] = []
    moved: list[int] = []
    at = 0
    while at < len(ids):
        is_pair = ids[at] == first and ids[at + 1 : at + 2] == [second]
        moved += [len(out)] * (2 if is_pair else 1)
        out.append(melted if is_pair else ids[at])
        at += 2 if is_pair else 1
    return out, moved


def _disjoint(ranges: list[Span]) -> list[Span]:
    """The same, each cut where the next one begins; they hold no embeddings there."""
    starts = sorted(start for start, _ in ranges)
    follower = dict(itertools.pairwise([*starts, 2**62]))
    return [(start, min(length, follower[start] - start)) for start, length in ranges]


def _crops(width: int, height: int, options: Mapping[str, Any]) -> tuple[int, int]:
    """(columns, rows) of crops besides the whole picture; none unless it is long enough."""
    if not opt.flag(options["do_pan_and_scan"], "do_pan_and_scan"):
        return 0, 0
    least = opt.integer(options["pan_and_scan_min_crop_size"], "pan_and_scan_min_crop_size")
    most = opt.integer(options["pan_and_scan_max_num_crops"], "pan_and_scan_max_num_crops")
    ratio = opt.number(options["pan_and_scan_min_ratio_to_activate"], "pan_and_scan_min_ratio")
    long, short = max(width, height), min(width, height)
    if long / short < ratio:
        return 0, 0
    count = min(math.floor(long / least), math.floor(long / short + 0.5))
    count = min(most, max(2, count))
    if min(math.ceil(long / count), short) < least:
        return 0, 0
    return (count, 1) if width >= height else (1, count)


def _cut(whole: "torch.Tensor", columns: int, rows: int) -> "list[torch.Tensor]":
    if not columns:
        return []
    height, width = math.ceil(whole.shape[-2] / rows), math.ceil(whole.shape[-1] / columns)
    return [
        whole[..., y : y + height, x : x + width]
        for y in range(0, rows * height, height)
        for x in range(0, columns * width, width)
    ]
