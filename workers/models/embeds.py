"""Embeddings that a caller made elsewhere, as fields of an item (--enable-mm-embeds).

Tensors come in torch's file format or numpy's, in base64. Nothing is unpickled but plain tensors,
and nothing is allocated beyond the limit, or beyond what a file holds, whatever it declares.
"""

import io
import pickle  # for its exception only
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from schemas.refusals import bad_request
from workers.models.families.adapter import ModalityFacts
from workers.models.data_urls import decode_base64
from workers.render.media import MediaPart

_NUMPY = b"\x93NUMPY"
_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})

_MAX_NUMBERS = 65_536
"""Of a grid or of timestamps."""
_MAX_ENTRIES = 64
"""Of a torch archive; a tensor's has seven."""
_MAX_PICKLE_BYTES = 64 * 1024
_ENTRY = b"PK\x01\x02"
"""Begins each entry in the directory of a ZIP archive."""

# What torch's unpickler, zipfile and numpy raise for bytes that are none of theirs.
_UNREADABLE = (
    pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, ValueError, TypeError, LookupError,
    EOFError, OSError, AttributeError, ImportError, ArithmeticError,
)  # fmt: skip


def load_fields(part: MediaPart, facts: ModalityFacts, limit: int) -> dict[str, Any]:
    """Tensors and lists by field name, complete for the family. Raise ApiError."""
    main = f"{part.modality}_embeds"
    payload = part.source if isinstance(part.source, Mapping) else {main: part.source}
    missing, unknown = set(facts.embeds) - set(payload), set(payload) - set(facts.embeds)
    if not facts.embeds or missing or unknown:
        raise bad_request(
            f"{part.param} needs the fields {sorted(facts.embeds)}, got {sorted(payload)}",
            part.param,
        )
    fields = {name: _value(value, name, part, limit) for name, value in payload.items()}
    fields[main] = _rows(fields[main], part)
    return fields


def _value(value: Any, name: str, part: MediaPart, limit: int) -> Any:
    if isinstance(value, str):
        tensor = _load(decode_base64(value), part, limit)
        return tensor if name.endswith("_embeds") else _numbers(tensor, name, part)
    if isinstance(value, list) and not name.endswith("_embeds"):
        _check_count(len(value), name, part)
        return value
    raise bad_request(f"{part.param}.{name} must be a base64 string", part.param)


def _numbers(tensor: torch.Tensor, name: str, part: MediaPart) -> list[Any]:
    _check_count(tensor.numel(), name, part)
    numbers: list[Any] = tensor.reshape(-1).tolist()
    return numbers


def _check_count(count: int, name: str, part: MediaPart) -> None:
    if count > _MAX_NUMBERS:
        raise bad_request(
            f"{part.param}.{name} has {count} numbers, more than {_MAX_NUMBERS}", part.param
        )


def _rows(value: Any, part: MediaPart) -> torch.Tensor:
    """[rows, width], also of a batch of one; all numbers finite."""
    tensor: torch.Tensor = value[0] if value.ndim == 3 and value.shape[0] == 1 else value
    if tensor.ndim != 2 or tensor.dtype not in _FLOATS or not tensor.numel():
        raise bad_request(
            f"{part.param} must be floating point numbers of shape (rows, width), got"
            f" {str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}",
            part.param,
        )
    if not bool(torch.isfinite(tensor).all()):
        raise bad_request(f"{part.param} holds numbers that are not finite", part.param)
    return tensor.contiguous()


def _load(data: bytes, part: MediaPart, limit: int) -> torch.Tensor:
    try:
        if data.startswith(_NUMPY):
            return _from_numpy(data, part, limit)
        _check_archive(data, part, limit)
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise bad_request(f"{part.param} is not a tensor file: {reason}", part.param) from error
    if not isinstance(value, torch.Tensor):
        raise bad_request(f"{part.param} does not hold a tensor", part.param)
    is_dense = value.layout is torch.strided and not value.is_quantized
    if not is_dense or value.device.type != "cpu":
        raise bad_request(f"{part.param} must be a dense tensor", part.param)
    declared = value.numel() * value.element_size()
    _check_size(declared, part, limit)
    # A view may repeat what is stored, with strides of zero.
    _check_held(declared, value.untyped_storage().nbytes(), part)
    return value.detach()


def _from_numpy(data: bytes, part: MediaPart, limit: int) -> torch.Tensor:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, is_fortran, dtype = read[version](file)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"no array of numbers: {dtype} of shape {shape}")
    declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
    _check_size(declared, part, limit)
    _check_held(declared, len(data) - file.tell(), part)
    values = np.frombuffer(data, dtype, declared // max(dtype.itemsize, 1), file.tell())
    values = values.reshape(shape, order="F" if is_fortran else "C")
    return torch.from_numpy(values.astype(dtype.newbyteorder("="), order="C"))


def _check_archive(data: bytes, part: MediaPart, limit: int) -> None:
    """A torch file is a ZIP archive, whose entries may be compressed, many, or all the same."""
    if data.count(_ENTRY) > _MAX_ENTRIES:
        raise bad_request(f"{part.param} holds more than one tensor", part.param)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    _check_size(size, part, limit)
    _check_held(size, len(data), part)
    pickles = [entry.file_size for entry in entries if entry.filename.endswith(".pkl")]
    if max(pickles, default=0) > _MAX_PICKLE_BYTES:
        raise bad_request(f"{part.param} holds more than a tensor", part.param)


def _check_size(size: int, part: MediaPart, limit: int) -> None:
    if 0 < limit < size:
        raise bad_request(
            f"a tensor of {size} bytes exceeds the limit of {limit} (VLLM_MAX_EMBED_DECODE_BYTES)",
            part.param,
        )


def _check_held(declared: int, held: int, part: MediaPart) -> None:
    if declared > held:
        raise bad_request(
            f"{part.param} declares {declared} bytes, but holds {held}", part.param
        )
