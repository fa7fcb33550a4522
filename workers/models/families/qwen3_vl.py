"""Qwen3-VL: images as Qwen2-VL's; a video is written as groups of frames with their times."""

import math
from collections.abc import Mapping
from typing import Any

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
from workers.models.families.qwen2_vl import Qwen2VL
from workers.models.families.qwen_sizes import (
    check_area,
    check_ratio,
    is_resampled,
    vision_size,
    with_aliases,
)
from workers.render.media import Replacement, Span

MODEL_TYPES = ("qwen3_vl", "qwen3_vl_moe")
MODALITIES = {
    "image": ModalityFacts(metadata=("image_grid_thw",), embeds=("image_embeds", "image_grid_thw")),
    "video": ModalityFacts(
        metadata=("timestamps", "video_grid_thw"),
        embeds=("video_embeds", "video_grid_thw", "timestamps"),
    ),
}
_HALF = (0.5, 0.5, 0.5)
_MAX_FRAMES, _MAX_FPS, _FALLBACK_FPS = 768, 30, 24.0


class Qwen3VL(Qwen2VL):
    """See `Family`."""

    modalities = MODALITIES
    video_loader = "qwen3_vl"
    video_defaults: Mapping[str, Any] = {
        **Qwen2VL.video_defaults, "patch_size": 16, "image_mean": _HALF, "image_std": _HALF,
        "fps": 2, "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    }  # fmt: skip

    def __init__(
        self,
        files: ModelFiles,
        vocabulary: Vocabulary,
        *,
        server_options: Mapping[str, Any],
        raw_pixels: bool,
    ) -> None:
        super().__init__(files, vocabulary, server_options=server_options, raw_pixels=raw_pixels)
        video = self.defaults["video"]
        self._own_fps = video["fps"] or 2
        video["fps"] = None  # an option of its own only where somebody wishes for it

    def prepared(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_aliases(request)

    def chosen_size(
        self, default: Mapping[str, int], chosen: Mapping[str, Any]
    ) -> Mapping[str, int]:
        """What is not given is the model's."""
        return vision_size(default, chosen)

    def options(self, modality: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        options = super().options(modality, request)
        if modality == "image" and None in (
            options.get("min_pixels", 1),
            options.get("max_pixels", 1),
        ):
            raise bad_request("min_pixels and max_pixels must be whole numbers, got null")
        return options

    def sample_frames(self, total: int, fps: float, kwargs: Mapping[str, Any]) -> list[int]:
        """Evenly from first to last, `fps` per second of the source (01 §6.4)."""
        wanted = min(opt.real(kwargs.get("fps", 2), "fps"), _MAX_FPS)
        least = opt.integer(kwargs.get("min_frames", 4), "min_frames")
        most = min(opt.integer(kwargs.get("max_frames", _MAX_FRAMES), "max_frames"), _MAX_FRAMES)
        count = int(total / (fps or _FALLBACK_FPS) * wanted)
        return spread(total, min(max(count, least), most, total))

    def select_frames(
        self, metadata: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[int] | None:
        """Where the loader kept all frames, the processor samples them (as it would by itself)."""
        if not is_resampled(options, metadata.get("do_sample_frames", False)):
            return None
        total, count = metadata["total_num_frames"], options["num_frames"]
        if count is None:
            return self.sample_frames(total, metadata["fps"], self._with_rate(options))
        if options["fps"] is not None:
            raise bad_request("num_frames and fps exclude each other")
        return spread(total, count)

    def _with_rate(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**options, "fps": self._own_fps if options["fps"] is None else options["fps"]}

    def for_item(
        self, modality: str, options: Mapping[str, Any], index: int, total: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """fps and num_frames may be lists, one value per video, which enters that video's hash."""
        if modality != "video":
            return options, {}
        lists = {k: options[k] for k in ("fps", "num_frames") if isinstance(options[k], list)}
        for name, values in lists.items():
            if len(values) < total:
                raise bad_request(
                    f"{name} must have at least {total} entries (one per video); got {len(values)}."
                )
        own = {name: values[index] for name, values in lists.items()}
        return {**options, **own}, own

    def plan_video(self, video: VideoFacts, options: Mapping[str, Any]) -> Plan:
        height, width = video.height, video.width
        if opt.flag(options["do_resize"], "do_resize"):
            height, width = self._video_size(video, options["size"])
        plan = self._plan("video", self.temporal_groups(video.num_frames), height, width)
        times = self._timestamps(self._timed_indices(video, options), video)
        if len(times) != self.temporal_groups(video.num_frames):
            raise bad_request(
                f"{video.num_frames} frames cannot be sampled from a video of"
                f" {video.metadata['total_num_frames']}"
            )
        pads = sum(count for _, count in plan.replacement.runs) // len(times)
        replacement, embeds = self._timed(times, pads)
        metadata = {**plan.metadata, "timestamps": items.batched_list(times, keep_on_cpu=True)}
        return Plan(replacement, embeds, metadata, plan.shape)

    def _video_size(self, video: VideoFacts, size: Mapping[str, int]) -> tuple[int, int]:
        """(height, width): the area bounds count all frames together."""
        factor, temporal = self.geometry.factor, self.geometry.temporal
        frames, height, width = video.num_frames, video.height, video.width
        if frames < temporal:
            raise bad_request(f"a video of {frames} frame(s) is too short, {temporal} are needed")
        if height < factor or width < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        check_ratio(height, width)
        high, wide = round(height / factor) * factor, round(width / factor) * factor
        volume = round(frames / temporal) * temporal * high * wide
        if volume > size["longest_edge"]:
            scale = math.sqrt((frames * height * width) / size["longest_edge"])
            high = max(factor, math.floor(height / scale / factor) * factor)
            wide = max(factor, math.floor(width / scale / factor) * factor)
        elif volume < size["shortest_edge"]:
            scale = math.sqrt(size["shortest_edge"] / (frames * height * width))
            high = math.ceil(height * scale / factor) * factor
            wide = math.ceil(width * scale / factor) * factor
            check_area(frames * high * wide)
        return high, wide

    def _timed_indices(self, video: VideoFacts, options: Mapping[str, Any]) -> list[int]:
        """Frames whose times are told: of a number wished for, not more than there are."""
        metadata, count = video.metadata, options["num_frames"]
        if count is None or not is_resampled(options, metadata.get("do_sample_frames", False)):
            return list(metadata["frames_indices"])
        total = metadata["total_num_frames"]
        return spread(total, min(max(count, options["min_frames"]), options["max_frames"], total))

    def _timestamps(self, indices: list[int], video: VideoFacts) -> list[float]:
        """Seconds of the middle of each temporal group."""
        step = self.geometry.temporal
        indices = indices + [indices[-1]] * (-len(indices) % step)
        fps = video.metadata["fps"] or _FALLBACK_FPS
        seconds = [video.times.get(index, index / fps) for index in indices]
        return [(seconds[i] + seconds[i + step - 1]) / 2 for i in range(0, len(seconds), step)]

    def _timed(self, times: list[float], pads: int) -> tuple[Replacement, list[Span]]:
        """Per group: its time in words, vision start, the pads, vision end."""
        runs: list[tuple[int, int]] = []
        embeds: list[Span] = []
        position = 0
        for time in times:
            text = self.vocabulary.encode(f"<{time:.1f} seconds>", add_special_tokens=False)
            group = [*((token, 1) for token in text), (self.tokens.vision_start, 1)]
            embeds.append((position + len(group), pads))
            runs += [*group, (self.tokens.video, pads), (self.tokens.vision_end, 1)]
            position += len(group) + pads + 1
        return Replacement(tuple(runs)), embeds

    def plan_embeds(self, modality: str, fields: Mapping[str, Any]) -> Plan:
        plan = super().plan_embeds(modality, fields)
        if modality == "image":
            return plan
        times = items.float_values(fields["timestamps"])
        groups = items.int_values(fields["video_grid_thw"])[0]
        if len(times) != groups:
            raise bad_request(f"timestamps must be {groups} numbers, got {len(times)}")
        replacement, embeds = self._timed(times, len(plan.replacement) // groups)
        metadata = {**plan.metadata, "timestamps": items.batched_list(times, keep_on_cpu=True)}
        return Plan(replacement, embeds, metadata)


def build(
    files: ModelFiles,
    vocabulary: Vocabulary,
    *,
    server_options: Mapping[str, Any],
    raw_pixels: bool,
) -> Qwen3VL:
    return Qwen3VL(files, vocabulary, server_options=server_options, raw_pixels=raw_pixels)


def spread(total: int, count: int) -> list[int]:
    """`count` indices from 0 to total - 1, halves rounded to even."""
    import numpy as np

    indices: list[int] = np.linspace(0, total - 1, count).round().astype(int).tolist()
    return indices
