"""`features`: the multimodal items of a prompt, where they lie and what they are (02 §1).

Knows the four parallel maps and not what the payloads contain (`schemas.mm_item`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from pydantic import BaseModel, Field, model_validator

from schemas.ec import is_plain_hash, is_present

Payloads: TypeAlias = dict[str, list[str | None]]
"""By modality, one base64 item or null per hash."""


class PlaceholderRange(BaseModel):
    offset: int = Field(ge=0)
    """Index in `token_ids` of the first placeholder token."""
    length: int = Field(gt=0)
    """Tokens in the range; for some models not all of them hold embeddings (02 §1.1)."""

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class FeatureItem:
    """One multimodal item, its four entries side by side."""

    modality: str
    index: int
    """Position among the items of its modality."""
    mm_hash: str
    placeholder: PlaceholderRange
    kwargs_data: str | None
    """Base64 of the full item."""
    mm_metadata: str | None
    """Base64 of the item's metadata fields."""


class MultiModalFeatures(BaseModel):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: Payloads | None = None
    mm_metadata: Payloads | None = None

    @model_validator(mode="after")
    def _check_parallel(self) -> "MultiModalFeatures":
        _check_modalities(self)
        for modality in self.mm_hashes:
            _check_lengths(self, modality)
        check_disjoint(self.ranges())
        return self

    def ranges(self) -> list[PlaceholderRange]:
        """All placeholder ranges, in the order of the prompt."""
        ranges = [r for of_modality in self.mm_placeholders.values() for r in of_modality]
        return sorted(ranges, key=lambda r: (r.offset, r.length))

    def items(self) -> Iterator[FeatureItem]:
        """Every item, modality by modality, within one in prompt order."""
        for modality, hashes in self.mm_hashes.items():
            for index, mm_hash in enumerate(hashes):
                yield FeatureItem(
                    modality,
                    index,
                    mm_hash,
                    self.mm_placeholders[modality][index],
                    _entry(self.kwargs_data, modality, index),
                    _entry(self.mm_metadata, modality, index),
                )


def _entry(payloads: Payloads | None, modality: str, index: int) -> str | None:
    return payloads[modality][index] if payloads is not None else None


def _check_modalities(features: MultiModalFeatures) -> None:
    wanted = features.mm_hashes.keys()
    if features.mm_placeholders.keys() != wanted:
        raise ValueError("mm_hashes and mm_placeholders must use the same modalities")
    for name in ("kwargs_data", "mm_metadata"):
        payloads = getattr(features, name)
        if payloads is not None and payloads.keys() != wanted:
            raise ValueError(f"{name} must use the same modalities as mm_hashes")


def _check_lengths(features: MultiModalFeatures, modality: str) -> None:
    count = len(features.mm_hashes[modality])
    if len(features.mm_placeholders[modality]) != count:
        raise ValueError(f"{modality} mm_hashes and mm_placeholders must have the same length")
    for name in ("kwargs_data", "mm_metadata"):
        payloads = getattr(features, name)
        if payloads is not None and len(payloads[modality]) != count:
            raise ValueError(f"{modality} {name} and mm_hashes must have the same length")


def check_disjoint(ranges: list[PlaceholderRange]) -> None:
    """ValueError where two of the sorted ranges overlap."""
    for before, after in pairwise(ranges):
        if after.offset < before.end:
            raise ValueError("mm_placeholders must be globally non-overlapping and sorted")


def check_inside(features: MultiModalFeatures, num_tokens: int) -> None:
    """ValueError where a range ends beyond the prompt."""
    if any(r.end > num_tokens for r in features.ranges()):
        raise ValueError("mm_placeholders must remain within the token_ids sequence")


def check_hashes(features: MultiModalFeatures) -> None:
    """ValueError where a hash is no plain token: it names files and objects of ours."""
    for item in features.items():
        if not is_plain_hash(item.mm_hash):
            raise ValueError(
                "mm_hashes must be plain tokens of at most 200 letters, digits or _:=+@.-, "
                f"got {item.mm_hash[:80]!r}"
            )


def check_payloads(features: MultiModalFeatures, ec_transfer_params: Any) -> None:
    """ValueError where an item has nothing its embedding could come from.

    Per item: full data, or transfer parameters that are not empty. Metadata beside full data is
    ignored, so it plays no part here.
    """
    if is_present(ec_transfer_params):
        return
    for item in features.items():
        if item.kwargs_data is not None:
            continue
        if item.mm_metadata is not None:
            raise ValueError("metadata-only multimodal items require ec_transfer_params")
        raise ValueError("multimodal items without kwargs_data require ec_transfer_params")
