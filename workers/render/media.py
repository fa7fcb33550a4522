"""The boundary between text and media in render: what a media adapter takes and gives.

The text side finds the media in the messages, renders and tokenizes the prompt and puts the
replacement tokens in; the media side (`workers.models`) fetches, decodes and processes. Imports no
pixel library.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol

from schemas.envelope import BlobRef

Span = tuple[int, int]
"""(first position, number of tokens)."""


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One medium as found in the messages, in prompt order."""

    modality: str
    """image, video or audio."""
    form: str
    """url, data (input_audio: a data URL is in `source`) or embeds."""
    param: str
    """Key it came under, for errors: image_url, video_url, input_audio, image_embeds …"""
    source: Any
    """URL string, payload of embeds, or None (only a uuid was given)."""
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """Tokens as (token, count) runs, so that thousands of equal ones need no list."""

    runs: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(repeat(token, count) for token, count in self.runs)


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One medium, processed."""

    modality: str
    mm_hash: str
    replacement: tuple[int, ...] | Replacement
    """Tokens that take the place of the item's span (see `Media.locate`)."""
    embeds: list[Span] | None
    """Runs inside the replacement that hold embeddings; None: all of it does."""
    kwargs: BlobRef | bytes | None
    """msgpack item (schemas.mm_item); None where tensors are not wanted."""
    metadata: bytes | None
    encoded: bool = False
    """The embedding is in the encoder cache already."""
    entry: str = ""
    """What it is kept under, where that is not the hash (see `schemas.envelope.Item`)."""
    by_caller: bool = False
    """Its embeddings were made elsewhere."""
    held: bytes | None = None
    """What `kwargs` refers to in a store of this process, which keeps what somebody holds."""


class Media(Protocol):
    """One model family's media. Errors that are the caller's fault are ApiError."""

    limits: Mapping[str, int]
    """Items per prompt and modality; 0: unsupported, or switched off."""
    max_limits: Mapping[str, int]
    """What the model could take if `--limit-mm-per-prompt` were raised."""
    literals: Sequence[str]
    """Contents of the special tokens that stand for media. Text of a caller never becomes one of
    them; text of a template does."""

    def placeholder(self, modality: str, index: int) -> str:
        """Text that stands for the index-th (from 0) item of its modality in "string" content."""

    def locate(self, prompt_ids: Sequence[int], parts: Sequence[MediaPart]) -> list[Span]:
        """What each part's replacement takes the place of, in the order of the parts.

        Each token of `literals` in the prompt was put there by the template, so the n-th
        placeholder of a modality is its n-th part. Raise ApiError where the numbers differ.
        """

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        """A last look at the expanded prompt, for families whose edge tokens melt with their
        neighbours (newlines in Gemma); the others return both as they are."""

    async def load(
        self,
        parts: Sequence[MediaPart],
        *,
        mm_processor_kwargs: Mapping[str, Any] | None,
        media_io_kwargs: Mapping[str, Any] | None,
        tenant: str,
        want_tensors: bool,
        cache_salt: str | None = None,
        skip_encoded: bool = False,
    ) -> list[MediaItem]:
        """Fetch, decode and process; one item per part, in order.

        Tenant and salt belong to every name by which a caller can ask for an item again.

        `skip_encoded`: an item whose embedding is in the encoder cache comes without tensors,
        marked `encoded`. Not for answers that show the tensors.
        """


def expand(
    prompt_ids: Sequence[int], spans: Sequence[Span], items: Iterable[MediaItem]
) -> tuple[list[int], list[Span]]:
    """Put each item's replacement where its span is; also return where it lies then.

    Items and ranges are in the order of `spans`, which may come in any order.
    """
    found = sorted(enumerate(zip(spans, items, strict=True)), key=lambda entry: entry[1][0])
    ids: list[int] = []
    ranges: dict[int, Span] = {}
    taken = 0
    for number, ((start, length), item) in found:
        ids += prompt_ids[taken:start]
        ranges[number] = (len(ids), len(item.replacement))
        ids += item.replacement
        taken = start + length
    ids += prompt_ids[taken:]
    return ids, [ranges[number] for number in range(len(spans))]
