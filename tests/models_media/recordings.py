"""Compares the media pipeline with recorded answers of vLLM's render server.

    python -m tests.models_media.recordings CASES_DIR MODELS_DIR [--pack FILE]

walks a corpus; `--pack` keeps what these tests need of it: tensors only by their digests.
"""

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from runtime.settings import ModelSettings, RenderSettings
from runtime.storage import BlobStore
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import BlobRef
from schemas.errors import ApiError
from schemas.mm_item import Tensor, decode_item
from workers.models.media import MediaPipeline
from workers.render.media import MediaItem, MediaPart
from workers.text.tokenizer import Tokenizer

PART_KEYS = {
    "image_url": "image", "video_url": "video", "image_embeds": "image", "video_embeds": "video",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One recorded request and what came back of its media."""

    id: str
    model: str
    flags: Mapping[str, str]
    body: Mapping[str, Any]
    status: int
    error: Mapping[str, Any] | None
    items: list[Mapping[str, Any]]
    """In the order of the body's parts: modality, hash, tokens, described kwargs and metadata."""


def read_case(path: Path) -> Case:
    raw = json.loads(path.read_text())
    flags = raw["server"]["flags"]
    response = raw.get("response") or {}
    body = raw.get("request") or {}
    blobs = path.parent.parent / "blobs"
    return Case(
        id=raw["id"],
        model=raw["server"]["model"],
        flags=dict(zip(flags, [*flags[1:], ""], strict=False)),
        body=body,
        status=raw["status"],
        error=response.get("error"),
        items=_items(body, response, blobs) if response.get("features") else [],
    )


def _items(
    body: Mapping[str, Any], response: Mapping[str, Any], blobs: Path
) -> list[Mapping[str, Any]]:
    features, found = response["features"], []
    seen: dict[str, int] = {}
    for part in parts_of(body):
        index = seen.get(part.modality, 0)
        seen[part.modality] = index + 1
        place = features["mm_placeholders"][part.modality][index]
        start, stop = place["offset"], place["offset"] + place["length"]
        payloads = {
            name: _decoded(((features.get(name) or {}).get(part.modality) or [])[index:], blobs)
            for name in ("kwargs_data", "mm_metadata")
        }
        found.append(
            {
                "modality": part.modality,
                "mm_hash": features["mm_hashes"][part.modality][index],
                "tokens": response["token_ids"][start:stop],
                "kwargs": describe(payloads["kwargs_data"]),
                "metadata": describe(payloads["mm_metadata"]),
            }
        )
    return found


def _decoded(values: list[Any], blobs: Path) -> bytes | None:
    if not values or values[0] is None:
        return None
    value = values[0]
    if isinstance(value, Mapping):
        value = gzip.decompress((blobs / f"{value['$blob']}.gz").read_bytes())
    return base64.b64decode(value)


def describe(item: bytes | None) -> dict[str, Any] | None:
    """An item's content without the bytes: `slices` depend on the history of a server."""
    if item is None:
        return None
    described = {}
    for name, field in decode_item(item).items():
        data: Any = field.data
        if isinstance(data, Tensor):
            data = [data.dtype, list(data.shape), blake3(data.data).hexdigest()]
        merging = {key: value for key, value in field.kwargs.items() if key != "slices"}
        described[name] = [data, field.factory, merging]
    return dict(sorted(described.items()))


def parts_of(body: Mapping[str, Any]) -> list[MediaPart]:
    """The media of a body as the text side would hand them over (well-formed bodies only)."""
    parts = []
    for message in body.get("messages", []):
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if made := _part(part):
                parts.append(made)
    return parts


def _part(part: Mapping[str, Any]) -> MediaPart | None:
    if part.get("type") == "image" and "source" in part:
        source = part["source"]
        url = f"data:{source['media_type']};base64,{source['data']}"
        return MediaPart("image", "url", "image_url", url)
    for key, modality in PART_KEYS.items():
        if key in part:
            value = part[key]
            form = "embeds" if key.endswith("_embeds") else "url"
            source = value.get("url") if form == "url" and isinstance(value, Mapping) else value
            return MediaPart(modality, form, key, source or None, part.get("uuid"))
    return None


def pipeline_for(case: Case, models: Path, blobs: BlobStore) -> MediaPipeline:
    flags = case.flags
    settings = ModelSettings(
        model=f"./{case.model}",
        enable_mm_embeds="--enable-mm-embeds" in flags,
        limit_mm_per_prompt=json.loads(flags.get("--limit-mm-per-prompt") or "{}"),
    )
    render = RenderSettings(trust_request_mm_kwargs="--trust-request-mm-kwargs" in flags)
    folder = models / case.model
    vocabulary = Tokenizer.from_directory(folder)
    return MediaPipeline(settings, render, blobs, None, model_dir=folder, vocabulary=vocabulary)


async def run_case(case: Case, pipeline: MediaPipeline) -> list[MediaItem] | ApiError:
    try:
        return await pipeline.load(
            parts_of(case.body),
            mm_processor_kwargs=case.body.get("mm_processor_kwargs"),
            media_io_kwargs=case.body.get("media_io_kwargs"),
            tenant="",
            want_tensors=wants_tensors(case.body),
        )
    except ApiError as error:
        return error


def wants_tensors(body: Mapping[str, Any]) -> bool:
    if "mm_payload" in body:
        return bool(body["mm_payload"] == "tensors")
    return bool(body.get("return_mm_kwargs", True))


async def differences(case: Case, got: list[MediaItem] | ApiError, blobs: BlobStore) -> list[str]:
    """What is not as recorded, in words; empty: everything is."""
    if isinstance(got, ApiError):
        return _error_differences(case, got)
    if case.status != 200:
        return [f"recorded {case.status} {case.error}, got {len(got)} items"]
    if len(got) != len(case.items):
        return [f"{len(got)} items, recorded {len(case.items)}"]
    found: list[str] = []
    for number, (item, recorded) in enumerate(zip(got, case.items, strict=True)):
        ours = await _described(item, blobs, with_metadata=wants_tensors(case.body))
        if "embeds" in case.id:  # vLLM's hash of such an item differs from process to process
            ours["mm_hash"] = recorded["mm_hash"]
        found += [
            f"item {number}: {key} is {str(ours[key])[:300]}, recorded {str(value)[:300]}"
            for key, value in recorded.items()
            if ours[key] != value
        ]
    return found


def _error_differences(case: Case, got: ApiError) -> list[str]:
    if case.error is None:
        return [f"refused ({got.status} {got.message}), recorded {case.status}"]
    if case.status >= 500 and got.status < 500:
        return []  # a caller's fault; deliberately a 4xx
    ours = (got.status, got.type, got.param)
    theirs = (case.status, case.error["type"], case.error["param"])
    return [] if ours == theirs else [f"error {ours}, recorded {theirs}"]


async def _described(item: MediaItem, blobs: BlobStore, *, with_metadata: bool) -> dict[str, Any]:
    kwargs = await blobs.get(item.kwargs) if isinstance(item.kwargs, BlobRef) else item.kwargs
    return {
        "modality": item.modality,
        "mm_hash": item.mm_hash,
        "tokens": list(item.replacement),
        "kwargs": describe(kwargs),
        "metadata": describe(item.metadata) if with_metadata else None,
    }


def unpack(path: Path) -> list[Case]:
    return [Case(**raw) for raw in json.loads(gzip.decompress(path.read_bytes()))]


async def main(cases: Path, models: Path, packed: Path | None) -> None:
    blobs = MemoryBlobs()
    pipelines: dict[str, MediaPipeline] = {}
    passed: list[Case] = []
    failed = 0
    for path in sorted(cases.glob("*.json")):
        case = read_case(path)
        if not parts_of(case.body):
            continue
        key = case.model + json.dumps(case.flags)
        if key not in pipelines:
            pipelines[key] = pipeline_for(case, models, blobs)
        found = await differences(case, await run_case(case, pipelines[key]), blobs)
        if found:
            failed += 1
            print(case.id, *found, sep="\n    ")
        else:
            passed.append(case)
    print(f"{len(passed)} as recorded, {failed} not")
    if packed is not None:
        text = json.dumps([asdict(case) for case in passed])
        packed.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    out = Path(sys.argv[4]) if sys.argv[3:4] == ["--pack"] else None
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), out))
