"""Names the sub-root of the encoder cache in which an embedding is valid.

An item's hash covers the model *string* and the file's bytes only, so weights and processor
configuration are kept apart here, tenants by the entries' names (`schemas.identity`). Equal in every
process that is set up alike. Imports no torch.
"""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import blake3

from runtime.errors import SettingsError

SAMPLE_BYTES = 4096
"""Read at the beginning, middle and end of every tensor."""
MAX_HEADER_BYTES = 100 * 1024 * 1024


def ec_namespace(model_dir: str | Path, processor_config: Mapping[str, Any]) -> str:
    """One path segment. SettingsError where the directory's weights cannot be read."""
    parts = (weights_fingerprint(Path(model_dir)), _digest_of_json(processor_config))
    return "-".join(part[:16] for part in parts)


def processor_config(model_dir: str | Path) -> dict[str, Any]:
    """The processor's files as they are; what a process adds by flags is the caller's to add."""
    names = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
    paths = [Path(model_dir) / name for name in names]
    return {path.name: _json(path) for path in paths if path.exists()}


def weights_fingerprint(model_dir: Path) -> str:
    """blake3 over the configuration and, of each tensor, name, dtype, shape and three samples.

    Training or merging changes a tensor as a whole, so samples tell versions of a model apart
    without reading gigabytes.
    """
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise SettingsError(f"model: {model_dir} holds no safetensors files")
    digest = blake3.blake3()
    digest.update(_digest_of_json(_json(model_dir / "config.json")).encode())
    for file in files:
        try:
            with file.open("rb") as opened:
                _add_file(digest, opened)
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise SettingsError(f"model: cannot read {file.name}: {error}") from error
    return digest.hexdigest()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"model: cannot read {path.name}: {error}") from error


def _digest_of_json(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return str(blake3.blake3(text.encode()).hexdigest())


def _add_file(digest: Any, file: BinaryIO) -> None:
    """Add a file's tensors, by name: how tensors are spread over files does not matter here."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, tensor in sorted(header.items()):
        digest.update(f"{name} {tensor['dtype']} {tensor['shape']}\n".encode())
        start, end = tensor["data_offsets"]
        for offset in _sample_offsets(start, end):
            file.seek(8 + length + offset)
            digest.update(file.read(min(SAMPLE_BYTES, end - offset)))


def _sample_offsets(start: int, end: int) -> list[int]:
    last = max(end - SAMPLE_BYTES, start)
    return sorted({start, (start + last) // 2, last})


_PLAIN = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")


def is_namespace(text: str) -> bool:
    """Whether a directory name is one of ours, for sweeping old ones."""
    return _PLAIN.fullmatch(text) is not None
