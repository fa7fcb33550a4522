"""Embeddings that a caller made elsewhere, as fields of an item (--enable-mm-embeds).

Tensors come in torch's file format or numpy's, in base64. Nothing is unpickled but plain tensors,
and nothing is allocated beyond the limit, whatever a file declares.
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
        return tensor if name.endswith("_embeds") else tensor.reshape(-1).tolist()
    if isinstance(value, list) and not name.endswith("_embeds"):
        return value
    raise bad_request(f"{part.param}.{name} must be a base64 string", part.param)


def _rows(value: Any, part: MediaPart) -> torch.Tensor:
    """[rows, width], also of a batch of one."""
    tensor: torch.Tensor = value[0] if value.ndim == 3 and value.shape[0] == 1 else value
    if tensor.ndim != 2 or tensor.dtype not in _FLOATS or not tensor.numel():
        raise bad_request(
            f"{part.param} must be floating point numbers of shape (rows, width), got"
            f" {str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        )
    return tensor.contiguous()


def _load(data: bytes, part: MediaPart, limit: int) -> torch.Tensor:
    try:
        if data.startswith(_NUMPY):
            return _from_numpy(data, limit)
        _check_archive(data, limit)
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise bad_request(f"{part.param} is not a tensor file: {reason}", part.param) from error
    if not isinstance(value, torch.Tensor):
        raise bad_request(f"{part.param} does not hold a tensor", part.param)
    if value.layout is not torch.strided or value.is_quantized:
        raise bad_request(f"{part.param} must be a dense tensor", part.param)
    _check_size(value.numel() * value.element_size(), limit)
    return value


def _from_numpy(data: bytes, limit: int) -> torch.Tensor:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = read[version](file)
    _check_size(int(np.prod(shape, dtype=object)) * dtype.itemsize, limit)
    return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))


def _check_archive(data: bytes, limit: int) -> None:
    """A torch file is a ZIP archive, whose entries may be compressed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        _check_size(sum(entry.file_size for entry in archive.infolist()), limit)


def _check_size(size: int, limit: int) -> None:
    if 0 < limit < size:
        raise bad_request(
            f"a tensor of {size} bytes exceeds the limit of {limit} (VLLM_MAX_EMBED_DECODE_BYTES)"
        )
