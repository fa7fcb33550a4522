"""The one-tensor safetensors files of the encoder cache, read and written without torch.

Format: 8 bytes little-endian header length, JSON header, data. Decides whether a header is what a
reader expects; touches no files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from runtime.errors import StoreError
from runtime.storage import Embedding

TENSOR = "ec_cache"
PREFIX_BYTES = 8
MAX_HEADER_BYTES = 64 * 1024

_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file says about its tensor."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    checksum: str | None
    """Of the data, where the writer left one (ours do, vLLM's do not)."""
    names: Mapping[str, str]
    """All that the writer noted beside the tensor."""


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor. StoreError for a dtype that is not stored."""
    if dtype not in _SIZES:
        raise StoreError(f"embeddings of dtype {dtype!r} are not stored")
    return prod(shape) * _SIZES[dtype]


def head_of(embedding: Embedding, names: Mapping[str, str]) -> bytes:
    """All bytes before the data, `names` among them. StoreError where shape, dtype and data
    disagree."""
    num_bytes = size_of(embedding.dtype, embedding.shape)
    if len(embedding.shape) != 2 or num_bytes == 0 or num_bytes != len(embedding.data):
        raise StoreError(
            f"{len(embedding.data)} bytes are no {embedding.dtype} tensor of {embedding.shape}"
        )
    entry = {
        "dtype": _NAMES[embedding.dtype],
        "shape": list(embedding.shape),
        "data_offsets": [0, num_bytes],
    }
    tree = {"__metadata__": dict(names), TENSOR: entry}
    header = json.dumps(tree, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # data aligned, as the format asks for
    return len(header).to_bytes(8, "little") + header


def header_length(prefix: bytes) -> int:
    length = int.from_bytes(prefix, "little")
    if len(prefix) != PREFIX_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise StoreError("not a safetensors file")
    return length


def layout_of(header: bytes, data_bytes: int) -> Layout:
    """Raise StoreError unless the header describes the one tensor that the data is."""
    try:
        tree = json.loads(header)
        entry = tree[TENSOR]
        names = _names(tree.get("__metadata__", {}))
        shape = _shape(entry["shape"])
        layout = Layout(_DTYPES[entry["dtype"]], shape, data_bytes, names.get("checksum"), names)
        begin, end = entry["data_offsets"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"no usable tensor {TENSOR!r} in the file") from error
    if begin != 0 or end != data_bytes or size_of(layout.dtype, layout.shape) != data_bytes:
        raise StoreError("the file is not as long as its header says")
    return layout


def _names(value: Any) -> dict[str, str]:
    if not all(isinstance(text, str) for text in value.values()):
        raise ValueError("the notes beside a tensor are strings")
    return dict(value)


def _shape(value: Any) -> tuple[int, ...]:
    if len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise ValueError("an embedding has two positive dimensions")
    return tuple(value)
