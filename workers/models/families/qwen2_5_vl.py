"""Qwen2.5-VL: as Qwen2-VL, and a video also tells how many seconds each temporal patch covers."""

from collections.abc import Mapping
from typing import Any

from schemas.refusals import bad_request
from workers.models import items
from workers.models.families.adapter import (
    ModalityFacts,
    ModelFiles,
    Plan,
    VideoFacts,
    Vocabulary,
)
from workers.models.families.qwen2_vl import MODALITIES as BASE_MODALITIES
from workers.models.families.qwen2_vl import Qwen2VL
from workers.models.families.qwen_sizes import is_resampled

MODALITIES = {
    "image": BASE_MODALITIES["image"],
    "video": ModalityFacts(
        metadata=("second_per_grid_ts", "video_grid_thw"),
        embeds=BASE_MODALITIES["video"].embeds,
    ),
}


class Qwen25VL(Qwen2VL):
    """See `Family`."""

    modalities = MODALITIES

    def select_frames(
        self, metadata: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[int] | None:
        """By number or by rate, out of the frames the file has."""
        if not is_resampled(options):
            return None
        total, count, fps = metadata["total_num_frames"], options["num_frames"], options["fps"]
        if (count is None) == (fps is None):
            raise bad_request("do_sample_frames needs either num_frames or fps for this model")
        if count is not None:
            return self.reduced(total, count)
        return self.sample_frames(total, metadata["fps"], options)

    def plan_video(self, video: VideoFacts, options: Mapping[str, Any]) -> Plan:
        plan = super().plan_video(video, options)
        taken, metadata = len(video.metadata["frames_indices"]), video.metadata
        sampled_fps = taken / metadata["total_num_frames"] * metadata["fps"]
        seconds = self.geometry.temporal / sampled_fps
        field = items.batched_float(seconds, self.dtype, keep_on_cpu=True)
        return Plan(
            plan.replacement,
            plan.embeds,
            {**plan.metadata, "second_per_grid_ts": field},
            plan.shape,
        )


def build(
    files: ModelFiles,
    vocabulary: Vocabulary,
    *,
    server_options: Mapping[str, Any],
    raw_pixels: bool,
) -> Qwen25VL:
    return Qwen25VL(files, vocabulary, server_options=server_options, raw_pixels=raw_pixels)
