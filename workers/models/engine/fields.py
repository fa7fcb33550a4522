"""An item's fields as torch tensors. Knows the codec's types and no model."""

import struct
from collections.abc import Mapping

import torch

from schemas.errors import ApiError
from schemas.mm_item import Field, Nested, Tensor


def to_tensors(fields: Mapping[str, Field]) -> dict[str, torch.Tensor]:
    """Every field that holds numbers. ApiError for a dtype that torch has no name for."""
    converted = {name: _to_tensor(name, field.data) for name, field in fields.items()}
    return {name: tensor for name, tensor in converted.items() if tensor is not None}


def _to_tensor(name: str, data: Nested) -> torch.Tensor | None:
    if isinstance(data, Tensor):
        return _from_bytes(name, data)
    if data is None:
        return None
    try:
        return torch.tensor(data)
    except (TypeError, ValueError, RuntimeError, struct.error):
        return None  # a list of tensors or of unequal lists: no encoder input has that form


def _from_bytes(name: str, data: Tensor) -> torch.Tensor:
    dtype = getattr(torch, data.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ApiError(
            f"The field {name!r} is of unknown dtype {data.dtype!r}.", param="kwargs_data"
        )
    if len(data.data) == 0:
        return torch.empty(data.shape, dtype=dtype)
    # A copy, because torch needs writable memory and the item's bytes are shared.
    return torch.frombuffer(bytearray(data.data), dtype=dtype).reshape(data.shape)
