"""Builds and reads the fields of a MultiModalKwargsItem (02 §4.1). Knows no family.

torch is only touched through the tensors that are handed in.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from schemas.mm_item import Field, Tensor
from schemas.refusals import bad_request

if TYPE_CHECKING:
    import torch


def tensor(value: "torch.Tensor") -> Tensor:
    """A view where the memory allows it."""
    from workers.models.pixels import to_bytes

    dtype = str(value.dtype).removeprefix("torch.")
    return Tensor(dtype, tuple(value.shape), to_bytes(value))


def flat(value: "torch.Tensor") -> Field:
    """A stretch of rows of the batch; here the batch is this one item."""
    rows = value.shape[0]
    return Field(
        tensor(value),
        "flat",
        {"keep_on_cpu": False, "slices": [[[0, rows, None]]], "dim": 0},
    )


def batched(value: "torch.Tensor", *, keep_on_cpu: bool = False) -> Field:
    return Field(tensor(value), "batched", {"keep_on_cpu": keep_on_cpu})


def batched_ints(values: Sequence[int] | int, *, keep_on_cpu: bool) -> Field:
    """int64, without torch: grids and counts are known before anything is decoded."""
    numbers = [values] if isinstance(values, int) else list(values)
    shape = () if isinstance(values, int) else (len(numbers),)
    data = struct.pack(f"<{len(numbers)}q", *numbers)
    return Field(Tensor("int64", shape, data), "batched", {"keep_on_cpu": keep_on_cpu})


def batched_list(values: Sequence[float], *, keep_on_cpu: bool) -> Field:
    return Field(list(values), "batched", {"keep_on_cpu": keep_on_cpu})


def int_values(value: Any) -> list[int]:
    """Whole numbers of an embeds part's field. Raise ApiError for anything else."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list) or not all(type(v) is int for v in listed):
        raise bad_request(f"expected a list of whole numbers, got {listed!r}")
    return listed


def float_values(value: Any) -> list[float]:
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list) or not all(type(v) in (int, float) for v in listed):
        raise bad_request(f"expected a list of numbers, got {listed!r}")
    return [float(v) for v in listed]


def batched_float(value: float, dtype: str, *, keep_on_cpu: bool) -> Field:
    """A scalar in the model's dtype, rounded twice as torch does: to float32, then to that."""
    import torch

    scalar = torch.tensor(value, dtype=torch.float32).to(getattr(torch, dtype))
    return batched(scalar, keep_on_cpu=keep_on_cpu)
