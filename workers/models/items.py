"""Builds and reads the fields of a MultiModalKwargsItem (02 §4.1). Knows no family.

torch is only touched through the tensors that are handed in.
"""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from schemas.mm_item import Field, Tensor, encoded_chunks
from schemas.refusals import bad_request

if TYPE_CHECKING:
    import torch


# Without content: `bytes(n)` would write zeros first.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]


_MAX_REAL = 2.0**53


class Unwritten:
    """Bytes of a tensor that are made where they belong: inside the encoded item.

    Large tensors are written once instead of being made, and copied into the item after that; fresh
    memory is what most of the time goes into.
    """

    def __init__(self, size: int, write: "Callable[[torch.Tensor], object]") -> None:
        """`write` fills a flat uint8 tensor of `size`."""
        self._size = size
        self.write = write

    def __len__(self) -> int:
        return self._size


def encode(fields: Mapping[str, Field]) -> bytes:
    """The item's bytes (02 §4), with unwritten tensors written now."""
    chunks: list[Any] = list(encoded_chunks(dict(fields)))
    if not any(isinstance(chunk, Unwritten) for chunk in chunks):
        return b"".join(chunks)
    from workers.models.pixels import view_of_bytes

    # Nobody else has seen these bytes yet, so they may still be written to.
    item: bytes = _new_bytes(None, sum(map(len, chunks)))
    room, start = memoryview(item), 0
    for chunk in chunks:
        part = view_of_bytes(room[start : start + len(chunk)])
        start += len(chunk)
        if isinstance(chunk, Unwritten):
            chunk.write(part)
        else:
            part.copy_(view_of_bytes(chunk))
    return item


def flat_unwritten(rows: int, width: int, write: "Callable[[torch.Tensor], object]") -> Field:
    """uint8 rows of the batch, see `Unwritten`."""
    data = cast(memoryview, Unwritten(rows * width, write))
    return _flat(Tensor("uint8", (rows, width), data))


def tensor(value: "torch.Tensor") -> Tensor:
    """A view where the memory allows it."""
    from workers.models.pixels import to_bytes

    dtype = str(value.dtype).removeprefix("torch.")
    return Tensor(dtype, tuple(value.shape), to_bytes(value))


def flat(value: "torch.Tensor") -> Field:
    """A stretch of rows of the batch; here the batch is this one item."""
    return _flat(tensor(value))


def _flat(value: Tensor) -> Field:
    slices = [[[0, value.shape[0], None]]]
    return Field(value, "flat", {"keep_on_cpu": False, "slices": slices, "dim": 0})


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
        raise bad_request(f"expected a list of whole numbers, got {str(listed)[:80]}")
    return listed


def float_values(value: Any) -> list[float]:
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list) or not all(map(_is_real, listed)):
        raise bad_request(f"expected a list of finite numbers, got {str(listed)[:80]}")
    return [float(v) for v in listed]


def _is_real(value: object) -> bool:
    return type(value) in (int, float) and -_MAX_REAL < value < _MAX_REAL  # type: ignore[operator]


def batched_float(value: float, dtype: str, *, keep_on_cpu: bool) -> Field:
    """A scalar in the model's dtype, rounded twice as torch does: to float32, then to that."""
    import torch

    scalar = torch.tensor(value, dtype=torch.float32).to(getattr(torch, dtype))
    return batched(scalar, keep_on_cpu=keep_on_cpu)
