"""Small fields of an item as plain numbers and lists. Imports no tensor library."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from schemas.errors import ApiError
from schemas.mm_item import Field, Nested, Tensor

MAX_BYTES = 64 * 1024
"""Of one tensor; metadata is a handful of numbers."""

_FORMATS = {
    "bool": "?", "uint8": "B", "int8": "b", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


def plain_fields(fields: Mapping[str, Field], names: Iterable[str]) -> dict[str, Any]:
    """The named fields that are there, tensors as lists. ApiError for what is not small."""
    return {name: _plain(name, fields[name].data) for name in names if name in fields}


def _plain(name: str, data: Nested) -> Any:
    if not isinstance(data, Tensor):
        return [_plain(name, entry) for entry in data] if isinstance(data, list) else data
    if len(data.data) > MAX_BYTES:
        raise ApiError(
            f"The metadata field {name!r} has {len(data.data)} bytes.", param="mm_metadata"
        )
    return _nested(_numbers(name, data), data.shape)


def _numbers(name: str, tensor: Tensor) -> list[Any]:
    if tensor.dtype == "bfloat16":  # the upper half of a float32
        halves = struct.iter_unpack("<2s", tensor.data)
        return [struct.unpack("<f", b"\0\0" + half)[0] for (half,) in halves]
    code = _FORMATS.get(tensor.dtype)
    if code is None:
        raise ApiError(
            f"The metadata field {name!r} cannot be of dtype {tensor.dtype}.", param="mm_metadata"
        )
    return [number for (number,) in struct.iter_unpack("<" + code, tensor.data)]


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return flat
    size = len(flat) // shape[0] if shape[0] else 0
    return [_nested(flat[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]
