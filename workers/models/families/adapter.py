"""What a model family tells about its media, and what it is given to tell it from.

Imports neither torch nor Pillow: the coordinator reads facts from families too. Knows no request.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from schemas.mm_item import Field
from workers.render.media import Replacement, Span

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from workers.models.video import Video


class Vocabulary(Protocol):
    """The part of a tokenizer that families need."""

    def encode(self, text: str, /, *, add_special_tokens: bool) -> Sequence[int]: ...

    def token_id(self, piece: str, /) -> int | None: ...


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The JSON of a model directory that concerns media."""

    config: Mapping[str, Any]
    image_processor: Mapping[str, Any]
    video_processor: Mapping[str, Any]
    processor: Mapping[str, Any]
    """Settings of the processor as a whole: image_seq_length, patch_size …"""
    dtype: str
    """What float tensors are cast to: the model's, as resolved from --dtype."""

    @property
    def fingerprint(self) -> str:
        text = json.dumps([self.image_processor, self.video_processor, self.processor, self.dtype])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def vision(self) -> Mapping[str, Any]:
        nested = self.config.get("vision_config")
        return nested if isinstance(nested, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ModalityFacts:
    """One modality of a family, without looking at any item."""

    metadata: tuple[str, ...]
    """Fields of `mm_metadata`; empty: the family exposes none."""
    embeds: tuple[str, ...] = ()
    """Fields that an embeds part must bring; empty: the family takes none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about an item but its pixels; made from the header alone where that is enough."""

    replacement: Replacement
    embeds: list[Span] | None
    """Runs inside the replacement that hold embeddings; None: all of it does."""
    metadata: Mapping[str, Field] = field(default_factory=dict)
    """Fields that also stand in `mm_metadata`."""
    shape: tuple[int, ...] = ()
    """What the family needs again when it makes the pixels: target size or crops."""

    @property
    def num_embeds(self) -> int:
        runs = [(0, len(self.replacement))] if self.embeds is None else self.embeds
        return sum(count for _, count in runs)


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """A video after sampling, as far as its placeholder depends on it."""

    width: int
    height: int
    num_frames: int
    """Frames taken from it."""
    metadata: Mapping[str, Any]
    """vLLM's metadata dictionary (01 §6.4)."""
    times: Mapping[int, float] = field(default_factory=dict)
    """Seconds at which frames are shown, by their numbers; empty at a constant rate."""


class Family(Protocol):
    """One model's media rules; built once per process by its module's `build`. Thread-safe."""

    modalities: Mapping[str, ModalityFacts]
    literals: Sequence[str]
    """Contents of the special tokens that stand for media."""
    video_loader: str
    """vLLM's name of the way frames are sampled; empty: takes no videos."""
    fingerprint: str
    """Changes whenever the model's own processor settings do; part of where tensors are kept."""

    def placeholder(self, modality: str, index: int) -> str:
        """Text that stands for an item in "string" content."""

    def target(self, modality: str) -> int:
        """Token of the templated prompt that an item takes the place of."""

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]: ...

    def options(self, modality: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Processor options in force: the model's, the server flag's, the request's, last wins."""

    def for_item(
        self, modality: str, options: Mapping[str, Any], index: int, total: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Options of one of `total` items, and those that are its own and enter its hash."""

    def plan_image(self, width: int, height: int, options: Mapping[str, Any]) -> Plan: ...

    def process_image(
        self, image: "Image.Image", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]:
        """The fields besides the plan's metadata."""

    def sample_frames(self, total: int, fps: float, kwargs: Mapping[str, Any]) -> list[int]:
        """Which frames of a video are looked at."""

    def select_frames(
        self, metadata: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[int] | None:
        """Which of the sampled frames the processor keeps; None: all."""

    def plan_video(self, video: VideoFacts, options: Mapping[str, Any]) -> Plan: ...

    def process_video(
        self, video: "Video", plan: Plan, options: Mapping[str, Any]
    ) -> Mapping[str, Field]: ...

    def plan_embeds(self, modality: str, fields: Mapping[str, Any]) -> Plan:
        """For an item whose embeddings came with the request; `fields` are those it declares."""

    def embeds_field(self, embeds: "torch.Tensor") -> Field:
        """Embeddings [rows, width] as they stand in an item."""
