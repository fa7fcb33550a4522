"""How many embeddings an item makes and where they go, told before anything is computed.

Imports no tensor library: shapes and a handful of numbers decide. Knows no requests.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.envelope import Item
from schemas.errors import ApiError
from schemas.mm_item import Fields, Nested, Tensor
from schemas.refusals import bad_request
from workers.models.engine.facts import ModalityLayout, ModelFacts
from workers.models.engine.metadata import plain_fields

Runs = tuple[tuple[int, int], ...]


def runs_of(item: Item, token_ids: Sequence[int], facts: ModelFacts) -> Runs:
    """Absolute positions of the item's rows."""
    if item.embeds is None:
        return facts.default_runs(item.modality, item.offset, item.length, token_ids)
    return tuple((item.offset + start, length) for start, length in item.embeds)


def check_room(item: Item, rows: int, runs: Runs) -> None:
    """ApiError where the item's placeholder does not have room for just so many embeddings."""
    room = sum(length for _, length in runs)
    if rows != room:
        raise bad_request(
            f"The {item.modality} at position {item.offset} has {rows} embeddings, but its "
            f"placeholder has room for {room}.",
            "mm_placeholders",
        )


def told_rows(
    item: Item, metadata: Mapping[str, Any], facts: ModelFacts, *, param: str
) -> int | None:
    """Embeddings by the item's metadata; None where the family's do not tell."""
    try:
        return facts.num_rows(item.modality, metadata)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise bad_request(f"The {item.modality}'s metadata are none: {error}", param) from None


def check_tensors(item: Item, fields: Fields, runs: Runs, facts: ModelFacts) -> None:
    """ApiError for a caller's tensors that do not make what their placeholder holds.

    What an encoder would make of them is compared first: its time and memory depend on it.
    """
    layout = facts.modalities[item.modality]
    metadata = plain_fields(fields, layout.metadata)
    told = told_rows(item, metadata, facts, param="kwargs_data")
    for rows in (told, _made_rows(layout, fields, metadata, facts)):
        if rows is not None:
            check_room(item, rows, runs)


def _made_rows(
    layout: ModalityLayout, fields: Fields, metadata: Mapping[str, Any], facts: ModelFacts
) -> int | None:
    if layout.embeds is not None and layout.embeds in fields:
        return _tensor(layout.embeds, fields[layout.embeds].data, 2).shape[0]
    if layout.pixels not in fields:
        raise _refusal(f"The item lacks the encoder input {layout.pixels!r}.")
    pixels = _tensor(layout.pixels, fields[layout.pixels].data, 2)
    if layout.grid is not None:
        _check_patches(layout.grid, layout.pixels, pixels, metadata, facts)
        return None  # as many as the grid tells
    if layout.patches is not None:
        crops = pixels.shape[0] if len(pixels.shape) == 4 else 1
        return crops * facts.tokens_per_patch
    return None  # a picture of one size, which the tower asks for


def _check_patches(
    grid: str, name: str, pixels: Tensor, metadata: Mapping[str, Any], facts: ModelFacts
) -> None:
    if grid not in metadata:
        raise _refusal(f"The item lacks the encoder input {grid!r}.")
    t, h, w = facts.grid_of(grid, metadata[grid])
    if pixels.shape[0] != t * h * w:
        raise _refusal(
            f"{name} must have the shape {[t * h * w, *pixels.shape[1:]]} of "
            f"{grid} {[t, h, w]}, got {list(pixels.shape)}."
        )


def _tensor(name: str, value: Nested, least_dims: int) -> Tensor:
    if not isinstance(value, Tensor) or len(value.shape) < least_dims:
        raise _refusal(f"{name} must be a tensor of at least {least_dims} dimensions.")
    return value


def _refusal(message: str) -> ApiError:
    return ApiError(message, param="kwargs_data")
