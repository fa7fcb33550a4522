"""Codec of a MultiModalKwargsItem: one msgpack map of named tensors (02-multimodal-features §4).

Tensor bytes are views into what was decoded, never copies; what was decoded encodes to the same
bytes. Knows msgpack, no tensor library.
"""

import base64
import binascii
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, TypeAlias

import msgpack

from schemas.errors import ApiError, DecodeError
from schemas.msgpack_view import Ext, read_document
from schemas.refusals import bad_request

RAW_VIEW = 3
"""Ext code of tensor bytes. Codes 1 and 2 are pickles and are never read."""

ITEM_SIZES: Mapping[str, int] = (
    dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1)
    | dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2)
    | dict.fromkeys(("int32", "uint32", "float32"), 4)
    | dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8)
    | {"complex128": 16}
)
"""Bytes per element by dtype, in torch's names without prefix."""

FACTORIES: Mapping[str, frozenset[str]] = {
    "batched": frozenset(),
    "flat": frozenset({"slices"}),
    "shared": frozenset({"batch_size"}),
}
"""How items merge (02 §4.1), and the keys each factory cannot do without."""

NUMBER_DTYPES = frozenset(ITEM_SIZES) - {
    "bool", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
}  # fmt: skip
"""What an encoder takes; a caller's tensors of other dtypes are refused."""

_MAX_DEPTH = 16
_MAX_VALUES = 65_536
_MAX_REQUEST_VALUES = 524_288
_MAX_DIMS = 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """Contiguous, C order, little endian."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise DecodeError(f"unknown dtype {self.dtype!r}")
        if len(self.shape) > _MAX_DIMS or any(n < 0 for n in self.shape):
            raise DecodeError(f"impossible tensor shape {self.shape}")
        declared = math.prod(self.shape) * ITEM_SIZES[self.dtype]
        if declared != len(self.data):
            raise DecodeError(
                f"a {self.dtype} tensor of shape {self.shape} takes {declared} bytes, "
                f"not {len(self.data)}"
            )


Nested: TypeAlias = "Tensor | int | float | list[Nested] | None"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an item: its value, and how the values of several items are merged."""

    data: Nested
    factory: str
    """`batched`, `flat` or `shared`."""
    kwargs: dict[str, Any] = default(default_factory=dict)
    """In wire order; `slices` hold [start, stop, step] lists."""

    @property
    def keep_on_cpu(self) -> bool:
        """A metadata field: part of `mm_metadata`, which prefill reads."""
        return bool(self.kwargs.get("keep_on_cpu", False))


Fields: TypeAlias = dict[str, Field]


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What `peek` tells about a field."""

    dtype: str | None
    """None: not a tensor."""
    shape: tuple[int, ...]
    nbytes: int
    keep_on_cpu: bool


def decode_item(data: bytes | memoryview) -> Fields:
    """The fields in wire order. DecodeError for anything that is not an item."""
    return _decoded(data, _MAX_VALUES)[0]


def _decoded(data: bytes | memoryview, max_values: int) -> tuple[Fields, int]:
    item, num_values = read_document(data, max_depth=_MAX_DEPTH, max_values=max_values)
    if not isinstance(item, dict):
        raise DecodeError("a multimodal item is a map of fields")
    return {name: _field(name, element) for name, element in item.items()}, num_values


def _field(name: str, element: object) -> Field:
    if not isinstance(element, dict) or element.keys() != {"data", "field"}:
        raise DecodeError(f"field {name!r} needs exactly data and field")
    factory, kwargs = _factory(name, element["field"])
    return Field(_nested(element["data"]), factory, kwargs)


def _factory(name: str, wire: object) -> tuple[str, dict[str, Any]]:
    match wire:
        case [str(factory), dict(kwargs)] if factory in FACTORIES:
            missing = FACTORIES[factory] - kwargs.keys()
            if missing or not all(map(_is_plain, kwargs.values())):
                raise DecodeError(f"field {name!r} describes its {factory} merging wrongly")
            return factory, kwargs
    raise DecodeError(f"field {name!r} names no known way of merging")


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int)


def _nested(value: object) -> Nested:
    match value:
        case None | int() | float():
            return value
        case list() if value and isinstance(value[0], str):
            return _tensor(value)
        case list():
            return [_nested(element) for element in value]
    raise DecodeError(f"a field holds a {type(value).__name__}")


def _tensor(wire: list[Any]) -> Tensor:
    match wire:
        case [str(dtype), list(shape), Ext(code=code, data=data)] if _are_sizes(shape):
            if code != RAW_VIEW:
                raise DecodeError(f"extension type code {code} is not supported")
            return Tensor(dtype, tuple(shape), data)
    raise DecodeError("a tensor is written as dtype, shape and raw bytes")


def _are_sizes(shape: list[Any]) -> bool:
    return all(type(size) is int for size in shape)


def encode_item(fields: Fields) -> bytes:
    return b"".join(encoded_chunks(fields))


def encoded_chunks(fields: Fields) -> Iterator[bytes | memoryview]:
    """The item in pieces; the bytes of a tensor are a piece of their own, the very object given."""
    packer = msgpack.Packer()
    yield packer.pack_map_header(len(fields))
    for name, field in fields.items():
        yield packer.pack(name)
        yield packer.pack_map_header(2)
        yield packer.pack("data")
        yield from _encoded_value(packer, field.data)
        yield packer.pack("field")
        yield packer.pack([field.factory, field.kwargs])


def _encoded_value(packer: msgpack.Packer, value: Nested) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        yield packer.pack_array_header(3)
        yield packer.pack(value.dtype)
        yield packer.pack(value.shape)
        yield _ext_header(len(value.data))
        yield value.data
    elif isinstance(value, list):
        yield packer.pack_array_header(len(value))
        for element in value:
            yield from _encoded_value(packer, element)
    else:
        yield packer.pack(value)


_FIXED = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def _ext_header(size: int) -> bytes:
    if size in _FIXED:
        return struct.pack(">Bb", _FIXED[size], RAW_VIEW)
    for code, form, bound in ((0xC7, "B", 1 << 8), (0xC8, "H", 1 << 16), (0xC9, "I", 1 << 32)):
        if size < bound:
            return struct.pack(f">B{form}b", code, size, RAW_VIEW)
    raise ValueError("a tensor of 4 GiB or more does not fit an item")


def peek(data: bytes | memoryview) -> dict[str, FieldShape]:
    """Names, shapes and sizes, for logs, limits and routing; tensor bytes stay untouched."""
    return {name: _shape_of(field) for name, field in decode_item(data).items()}


def _shape_of(field: Field) -> FieldShape:
    if isinstance(field.data, Tensor):
        tensor = field.data
        return FieldShape(tensor.dtype, tensor.shape, len(tensor.data), field.keep_on_cpu)
    return FieldShape(None, (), 0, field.keep_on_cpu)


def metadata_only(fields: Fields) -> Fields:
    """The fields of an `mm_metadata` entry; empty where a model exposes none (02 §6)."""
    return {name: field for name, field in fields.items() if field.keep_on_cpu}


class ItemReader:
    """Reads the items of one request out of their base64, bounded in values for all together."""

    def __init__(self) -> None:
        self._values_left = _MAX_REQUEST_VALUES

    def read(self, text: str, param: str) -> tuple[bytes, Fields]:
        """An item's bytes and its fields. ApiError 400 for what is none, or holds no numbers.

        `param` is what it came as: kwargs_data or mm_metadata.
        """
        try:
            data = base64.b64decode(text)  # lenient about foreign characters, as vLLM's decoder
        except (binascii.Error, ValueError) as error:
            raise bad_request(f"a multimodal item is not base64: {error}") from None
        try:
            fields, count = _decoded(data, min(_MAX_VALUES, self._values_left))
        except DecodeError as error:
            raise bad_item(error) from None
        self._values_left -= count
        check_numbers(fields, param)
        return data, fields


def item_bytes(text: str) -> bytes:
    """A lone item out of a request's base64, checked. ApiError 400 for what is none."""
    return ItemReader().read(text, "kwargs_data")[0]


def check_numbers(fields: Fields, param: str) -> None:
    """ApiError 400 naming the field whose values no encoder takes: by dtype, or not finite.

    Of tensors only the dtype is looked at: whoever computes with them looks at their numbers.
    """
    for name, field in fields.items():
        for value in _leaves(field.data):
            if isinstance(value, Tensor) and value.dtype not in NUMBER_DTYPES:
                raise bad_request(f"the field {name!r} cannot be of dtype {value.dtype}", param)
            if isinstance(value, float) and not math.isfinite(value):
                raise bad_request(f"the field {name!r} holds {value}, which is not finite", param)


def _leaves(value: Nested) -> Iterator[Nested]:
    if not isinstance(value, list):
        yield value
        return
    for element in value:
        yield from _leaves(element)


def bad_item(error: DecodeError) -> ApiError:
    return bad_request(f"a multimodal item cannot be decoded: {error}")
