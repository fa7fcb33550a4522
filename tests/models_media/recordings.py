"""Compares the media pipeline with recorded answers of vLLM's render server.

`python tests/models_media/recordings.py CASES_DIR MODELS_DIR` walks a whole corpus.
"""

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.settings import ModelSettings, RenderSettings
from runtime.storage import BlobStore
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import BlobRef
from schemas.errors import ApiError
from schemas.mm_item import Field, Tensor, decode_item
from workers.models.media import MediaPipeline
from workers.render.media import MediaItem, MediaPart
from workers.text.tokenizer import Tokenizer

PART_KEYS = {
    "image_url": "image", "video_url": "video", "image_embeds": "image", "video_embeds": "video",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One recorded request and what came back."""

    id: str
    model: str
    flags: Mapping[str, Any]
    body: Mapping[str, Any]
    status: int
    response: Mapping[str, Any]
    blobs: Path

    @property
    def features(self) -> Mapping[str, Any] | None:
        return self.response.get("features")


def load_case(path: Path) -> Case:
    raw = json.loads(path.read_text())
    flags = raw["server"]["flags"]
    named = dict(zip(flags, [*flags[1:], ""], strict=False))
    return Case(
        raw["id"], raw["server"]["model"], named, raw.get("request") or {}, raw["status"],
        raw.get("response") or {}, path.parent.parent / "blobs",
    )  # fmt: skip


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


def pipeline_for(
    model: str, models: Path, flags: Mapping[str, Any], blobs: BlobStore
) -> MediaPipeline:
    limits = json.loads(flags.get("--limit-mm-per-prompt") or "{}")
    settings = ModelSettings(
        model=f"./{model}",
        enable_mm_embeds="--enable-mm-embeds" in flags,
        limit_mm_per_prompt=limits,
    )
    render = RenderSettings(trust_request_mm_kwargs="--trust-request-mm-kwargs" in flags)
    return MediaPipeline(
        settings, render, blobs, None,
        model_dir=models / model, vocabulary=Tokenizer.from_directory(models / model),
    )  # fmt: skip


async def run_case(case: Case, pipeline: MediaPipeline) -> list[MediaItem] | ApiError:
    body = case.body
    try:
        return await pipeline.load(
            parts_of(body),
            mm_processor_kwargs=body.get("mm_processor_kwargs"),
            media_io_kwargs=body.get("media_io_kwargs"),
            tenant="",
            want_tensors=wants_tensors(body),
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
        return [f"recorded {case.status} {case.response}, got {len(got)} items"]
    found: list[str] = []
    seen: dict[str, int] = {}
    for item in got:
        index = seen.get(item.modality, 0)
        seen[item.modality] = index + 1
        found += [f"{item.modality} {index}: {d}" for d in await _item(case, item, index, blobs)]
    recorded = {m: len(h) for m, h in ((case.features or {}).get("mm_hashes") or {}).items()}
    return found + ([f"items {seen}, recorded {recorded}"] if seen != recorded else [])


def _error_differences(case: Case, got: ApiError) -> list[str]:
    error = case.response.get("error")
    if not error:
        return [f"refused ({got.status} {got.message}), recorded {case.status}"]
    if case.status >= 500 and got.status < 500:
        return []  # a caller's fault; deliberately a 4xx
    ours = (got.status, got.type, got.param)
    theirs = (case.status, error["type"], error["param"])
    return [] if ours == theirs else [f"error {ours}, recorded {theirs}"]


async def _item(case: Case, item: MediaItem, index: int, blobs: BlobStore) -> list[str]:
    features = case.features or {}
    found = []
    volatile = "embeds" in case.id
    if not volatile and item.mm_hash != features["mm_hashes"][item.modality][index]:
        found.append(f"hash {item.mm_hash}")
    place = features["mm_placeholders"][item.modality][index]
    start, stop = place["offset"], place["offset"] + place["length"]
    if list(item.replacement) != case.response["token_ids"][start:stop]:
        found.append(f"replacement of {len(item.replacement)} tokens")
    kwargs = item.kwargs
    if isinstance(kwargs, BlobRef):
        kwargs = await blobs.get(kwargs)
    for name, ours in (("kwargs_data", kwargs), ("mm_metadata", item.metadata)):
        recorded = ((features.get(name) or {}).get(item.modality) or [None] * (index + 1))[index]
        if name == "mm_metadata" and not wants_tensors(case.body):
            continue
        found += [f"{name}: {d}" for d in _payload(ours, _blob(case, recorded))]
    return found


def _blob(case: Case, value: Any) -> bytes | None:
    if isinstance(value, Mapping):
        value = gzip.decompress((case.blobs / f"{value['$blob']}.gz").read_bytes())
    return None if value is None else base64.b64decode(value)


def _payload(ours: bytes | None, recorded: bytes | None) -> list[str]:
    if ours is None or recorded is None:
        return [] if ours == recorded else [f"ours is None: {ours is None}"]
    mine, theirs = decode_item(ours), decode_item(recorded)
    if set(mine) != set(theirs):
        return [f"fields {sorted(mine)}, recorded {sorted(theirs)}"]
    return [d for name in mine for d in _field(name, mine[name], theirs[name])]


def _field(name: str, mine: Field, theirs: Field) -> list[str]:
    found = []
    merging = [{k: v for k, v in f.kwargs.items() if k != "slices"} for f in (mine, theirs)]
    if (mine.factory, merging[0]) != (theirs.factory, merging[1]):
        found.append(f"{name} merges as {mine.factory} {merging[0]}")
    a, b = mine.data, theirs.data
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            found.append(f"{name} is {a.dtype} {a.shape}, recorded {b.dtype} {b.shape}")
        elif bytes(a.data) != bytes(b.data):
            found.append(f"{name}: {_distance(a, b)}")
    elif a != b:
        found.append(f"{name} is {a}, recorded {b}")
    return found


def _distance(a: Tensor, b: Tensor) -> str:
    import numpy as np

    if a.dtype != "uint8":
        return "bytes differ"
    x, y = (np.frombuffer(t.data, np.uint8).astype(int) for t in (a, b))
    return f"{np.count_nonzero(x - y)} of {x.size} values differ, by up to {abs(x - y).max()}"


async def main(cases: Path, models: Path) -> None:
    blobs = MemoryBlobs()
    pipelines: dict[str, MediaPipeline] = {}
    passed = failed = 0
    for path in sorted(cases.glob("*.json")):
        case = load_case(path)
        if not parts_of(case.body):
            continue
        key = case.model + json.dumps(case.flags)
        if key not in pipelines:
            pipelines[key] = pipeline_for(case.model, models, case.flags, blobs)
        found = await differences(case, await run_case(case, pipelines[key]), blobs)
        passed, failed = passed + (not found), failed + bool(found)
        if found:
            print(case.id, *found, sep="\n    ")
    print(f"{passed} as recorded, {failed} not")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
