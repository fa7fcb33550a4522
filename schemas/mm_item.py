"""Codec of a MultiModalKwargsItem: one msgpack map of named tensors (02-multimodal-features §4).

Tensor bytes are views into what was decoded, never copies; what was decoded encodes to the same
bytes. Knows msgpack, no tensor library.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from schemas.errors import DecodeError

RAW_VIEW = 3
"""Ext code of tensor bytes. Codes 1 and 2 are pickles and are never read."""

ITEM_SIZES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element by dtype, in torch's names without prefix."""

MAX_DEPTH = 16
MAX_FIELDS = 256
MAX_DIMS = 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """Contiguous, C order, little endian."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


Nested: TypeAlias = "Tensor | int | float | list[Nested] | None"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an item: its value, and how values of several items are merged."""

    data: Nested
    factory: str
    """`batched`, `flat` or `shared`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """In wire order; `slices` hold lists of [start, stop, step]."""

    @property
    def keep_on_cpu(self) -> bool:
        """Metadata: part of `mm_metadata`, read by prefill."""
        return bool(self.kwargs.get("keep_on_cpu", False))


Fields: TypeAlias = dict[str, Field]


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What `peek` tells about a field without touching its bytes."""

    dtype: str | None
    """None: not a tensor."""
    shape: tuple[int, ...]
    nbytes: int
    keep_on_cpu: bool


def decode_item(data: bytes | memoryview) -> Fields:
    raise DecodeError("not written yet")


def encode_item(fields: Fields) -> bytes:
    raise DecodeError("not written yet")


def peek(data: bytes | memoryview) -> dict[str, FieldShape]:
    """Names, shapes and sizes, for logs, limits and routing."""
    return {name: _shape_of(f) for name, f in decode_item(data).items()}


def _shape_of(f: Field) -> FieldShape:
    if isinstance(f.data, Tensor):
        return FieldShape(f.data.dtype, f.data.shape, len(f.data.data), f.keep_on_cpu)
    return FieldShape(None, (), 0, f.keep_on_cpu)


def metadata_only(fields: Fields) -> Fields:
    """The fields an `mm_metadata` entry holds; empty where a model exposes none (02 §6)."""
    return {name: f for name, f in fields.items() if f.keep_on_cpu}
