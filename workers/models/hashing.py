"""The identity of a media item: vLLM's digest of its bytes and of all that changes its pixels.

Knows nothing of requests, stores or models; equal input gives vLLM's hash, bit for bit (02 §2).
"""

import hashlib
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

Algorithm = Literal["blake3", "sha256", "sha512"]
Chunk = bytes | memoryview

_NONE, _SEQUENCE, _MAPPING, _LEAF = b"\x00", b"\x01", b"\x02", b"\x03"

_LARGE_BYTES = 4096

_KWARGS_OF_OTHER_MODALITIES = {
    "image": ("videos_kwargs", "audio_kwargs"),
    "video": ("images_kwargs", "audio_kwargs"),
    "audio": ("images_kwargs", "videos_kwargs"),
}
_SCOPE_OF_KWARGS = frozenset({"images_kwargs", "videos_kwargs", "audio_kwargs"})


class Digest(Protocol):
    def update(self, data: Any, /) -> Any: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image as it arrived. Its file is hashed, not its pixels."""

    data: Chunk
    io_config: Mapping[str, Any] | None = None
    """How decoding changed the picture (target mode, background); None where it did not."""


@dataclass(frozen=True, slots=True)
class VideoFile:
    """A video as it arrived, beside the frames that were taken from it."""

    data: Chunk
    frames: Any | None
    """ndarray [n, height, width, 3] uint8, hashed instead of the file where it is smaller.
    None: it is known not to be."""


def item_id(
    modality: str,
    item: Any,
    *,
    model: str,
    algorithm: Algorithm = "blake3",
    uuid: str | None = None,
    processor_kwargs: Mapping[str, Any] | None = None,
    io_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The item's entry in `mm_hashes`; `model` is the string exactly as the operator typed it.

    `processor_kwargs` are those of the request alone, `io_kwargs` those in force for the modality.
    """
    factors = hash_factors(modality, processor_kwargs or {}, io_kwargs or {})
    if uuid is not None and not factors:
        return uuid
    subject = item if uuid is None else uuid
    return digest({"model_id": model, modality: subject, **factors}, algorithm)


def hash_factors(
    modality: str, processor_kwargs: Mapping[str, Any], io_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What besides the item decides its pixels: option groups of other modalities do not."""
    foreign = _KWARGS_OF_OTHER_MODALITIES.get(modality, _SCOPE_OF_KWARGS)
    own = {key: value for key, value in processor_kwargs.items() if key not in foreign}
    factors: dict[str, Any] = {}
    if io_kwargs:
        factors["media_io_kwargs"] = {modality: dict(io_kwargs)}
    if own:
        factors["mm_processor_kwargs"] = own
    return factors


def digest(values: Mapping[str, Any], algorithm: Algorithm = "blake3") -> str:
    """Lowercase hex of the framed values, in the byte order of their keys."""
    hasher = _hasher(algorithm)
    for chunk in _joined(chunk for key in sorted(values) for chunk in _item(key, values[key])):
        hasher.update(chunk)
    return hasher.hexdigest()


def _joined(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Small chunks together: every update gives the interpreter lock away and wants it back."""
    small: list[Chunk] = []
    for chunk in chunks:
        if len(chunk) < _LARGE_BYTES:
            small.append(chunk)
            continue
        yield b"".join(small)
        small.clear()
        yield chunk
    yield b"".join(small)


def _hasher(algorithm: Algorithm) -> Digest:
    if algorithm == "blake3":
        from blake3 import blake3

        return blake3()
    return hashlib.new(algorithm)


def _item(key: str, value: Any) -> Iterator[Chunk]:
    yield from _frame(key.encode())
    yield from _value(value)


def _frame(chunk: Chunk) -> Iterator[Chunk]:
    yield _length(chunk.nbytes if isinstance(chunk, memoryview) else len(chunk))
    yield chunk


def _length(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _value(value: Any) -> Iterator[Chunk]:
    if value is None:
        yield _NONE
    elif isinstance(value, list | tuple):
        yield from _sequence(value)
    elif isinstance(value, Mapping):
        yield from _mapping(value)
    else:
        yield _LEAF
        yield from _leaf(value)


def _sequence(values: Sequence[Any]) -> Iterator[Chunk]:
    yield _SEQUENCE
    yield _length(len(values))
    for value in values:
        yield from _value(value)


def _mapping(values: Mapping[Any, Any]) -> Iterator[Chunk]:
    yield _MAPPING
    yield _length(len(values))
    for key, value in values.items():
        yield from _item(str(key), value)


def _leaf(value: Any) -> Iterator[Chunk]:
    if isinstance(value, bytes | memoryview):
        return _frame(value)
    if isinstance(value, str):
        return _frame(value.encode())
    if isinstance(value, bool | int | float):
        return _frame(_number(value))
    if isinstance(value, ImageFile):
        return _image_file(value)
    if isinstance(value, VideoFile):
        size = memoryview(value.data).nbytes
        small = value.frames is not None and value.frames.nbytes < size
        return _item("video", value.frames if small else value.data)
    return _library_leaf(value)


def _number(value: bool | int | float) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<?", value)
    if isinstance(value, float):
        return struct.pack("<d", value)
    # 8 bytes as long as that is enough. What numpy makes of longer ones is no identity.
    size = 8 if -(2**63) <= value < 2**64 else value.bit_length() // 8 + 1
    return value.to_bytes(size, "little", signed=value < 0)


def _image_file(image: ImageFile) -> Iterator[Chunk]:
    if image.io_config is None:
        return _item("image", image.data)
    return _item("image", {"io_config": image.io_config, "data": image.data})


def _library_leaf(value: Any) -> Iterator[Chunk]:
    """Leaves of numpy, torch and Pillow, told apart by where their class lives."""
    handlers: dict[str, Callable[[Any], Iterator[Chunk]]] = {
        "torch": _tensor,
        "numpy": _array,
        "PIL": _picture,
    }
    for base in type(value).__mro__:
        if handler := handlers.get(base.__module__.partition(".")[0]):
            return handler(value)
    raise TypeError(f"no stable hash for a value of type {type(value).__name__}")


def _array(array: "np.ndarray[Any, Any]") -> Iterator[Chunk]:
    data: Any = array.item() if array.ndim == 0 else _array_bytes(array)
    return _item("ndarray", {"dtype": array.dtype.str, "shape": array.shape, "data": data})


def _array_bytes(array: "np.ndarray[Any, Any]") -> Chunk:
    if array.flags.c_contiguous and array.size:
        return array.reshape(-1).view("u1").data
    return array.tobytes()


def _tensor(tensor: "torch.Tensor") -> Iterator[Chunk]:
    import torch

    tensor = tensor.cpu()
    if tensor.dtype is not torch.bfloat16:
        return _item("tensor", tensor.numpy())
    raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()  # numpy has no bfloat16
    return _item(
        "tensor",
        {"original_dtype": "torch.bfloat16", "original_shape": tuple(tensor.shape), "data": raw},
    )


def _picture(image: "Image.Image") -> Iterator[Chunk]:
    import numpy as np
    from PIL import ExifTags

    image_id = image.getexif().get(ExifTags.Base.ImageID)
    if isinstance(image_id, uuid.UUID):
        return _frame(image_id.bytes)
    values: dict[str, Any] = {"mode": image.mode, "data": np.asarray(image)}
    if image.palette is not None:
        values["palette"] = image.palette.palette
        if image.palette.rawmode is not None:
            values["palette_rawmode"] = image.palette.rawmode
    return _item("image", values)
