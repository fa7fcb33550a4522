"""The rendered prompt in its wire forms: the body of a bare render, and what later stages get.

01-render §7. Large tensors stay in the blob store: the body has holes for them. Decides nothing.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pybase64

from runtime.stage import Job
from schemas.envelope import PROMPTS, Base64Of, BlobRef, Item, kwargs_part, metadata_part
from schemas.sampling import SamplingParams
from workers.render.media import MediaItem

# Stands for a tensor's base64 text until the body is cut into segments.
_HOLE = f"hole-{secrets.token_hex(16)}-"
_MARK = re.compile(rf"{_HOLE}(\d+)".encode())


@dataclass(frozen=True, slots=True)
class Rendered:
    """One prompt, rendered."""

    request_id: str
    ids: list[int]
    sampling_params: SamplingParams
    model: str | None
    options: Mapping[str, Any]
    """Fields that repeat the request's: see `carried_fields`."""
    offsets: Sequence[Sequence[int]] | None = None
    text: str | None = None
    items: Sequence[Item] = ()
    media: Sequence[MediaItem] = ()
    """One per item."""
    reasoning_ended: bool | None = None
    reasoning_kwargs: Mapping[str, Any] | None = None
    """Effective template kwargs, where a reasoning parser is set up."""
    parse_context: Mapping[str, Any] | None = None


def answer(rendered: Rendered, features: Mapping[str, Any] | None) -> dict[str, Any]:
    """A GenerateRequest, all keys present."""
    carried = rendered.options
    kwargs = rendered.reasoning_kwargs
    return {
        "request_id": rendered.request_id,
        "token_ids": rendered.ids,
        "token_offsets": rendered.offsets,
        "features": features,
        "content_parts": None,
        "sampling_params": rendered.sampling_params.to_wire(),
        "model": rendered.model,
        "reasoning_ended": rendered.reasoning_ended,
        "reasoning_parser_kwargs": None if kwargs is None else {"chat_template_kwargs": kwargs},
        "return_token_ids": carried["return_token_ids"],
        "output_mode": "tokens",
        "parse_context": rendered.parse_context,
        "stream": carried["stream"],
        "stream_options": carried["stream_options"],
        "cache_salt": carried["cache_salt"],
        "priority": carried["priority"],
        "kv_transfer_params": carried["kv_transfer_params"],
        "ec_transfer_params": carried["ec_transfer_params"],
    }


# --- a bare render


async def write_body(
    job: Job, rendered: Sequence[Rendered], *, as_list: bool, with_tensors: bool
) -> None:
    """Finish the job with the endpoint's body."""
    holes: list[BlobRef] = []
    objects = []
    for prompt in rendered:
        payloads = await _payloads(job, prompt, holes) if with_tensors else None
        objects.append(answer(prompt, _features(prompt, payloads)))
    text = dump_json(objects if as_list else objects[0])
    job.finish(_segments(text, holes))


def dump_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):  # integers beyond 64 bit, lone surrogates
        return json.dumps(value, separators=(",", ":")).encode()


async def _payloads(
    job: Job, prompt: Rendered, holes: list[BlobRef]
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """kwargs_data and mm_metadata by modality; tensors as marks of holes."""
    tensors: dict[str, list[Any]] = {}
    metadata: dict[str, list[Any]] = {}
    for item in prompt.media:
        tensors.setdefault(item.modality, []).append(await _mark(job, item.kwargs, holes))
        encoded = None if item.metadata is None else _base64(item.metadata)
        metadata.setdefault(item.modality, []).append(encoded)
    kept = {modality: given for modality, given in metadata.items() if any(given)}
    return tensors, kept


async def _mark(job: Job, kwargs: BlobRef | bytes | None, holes: list[BlobRef]) -> str | None:
    if kwargs is None:
        return None
    if isinstance(kwargs, BlobRef):
        await job.blobs.refresh(kwargs)  # it may be a while since it was written
        holes.append(kwargs)
    else:
        holes.append(await job.store(kwargs))
    return f"{_HOLE}{len(holes) - 1}"


def _base64(data: bytes) -> str:
    return str(pybase64.b64encode_as_string(data))


def _segments(text: bytes, holes: Sequence[BlobRef]) -> list[bytes | Base64Of]:
    """The text between the marks, which stand by modality and not in the order of their numbers."""
    if not holes:
        return [text]
    pieces = _MARK.split(text)
    segments: list[bytes | Base64Of] = [pieces[0]]
    for number, following in zip(pieces[1::2], pieces[2::2], strict=True):
        segments += [Base64Of(blob=holes[int(number)]), following]
    return segments


def _features(
    prompt: Rendered, payloads: tuple[dict[str, list[Any]], dict[str, list[Any]]] | None
) -> dict[str, Any] | None:
    if not prompt.items:
        return None
    tensors, metadata = payloads or (None, None)
    return {**_places(prompt.items), "kwargs_data": tensors, "mm_metadata": metadata or None}


def _places(items: Iterable[Item]) -> dict[str, Any]:
    """What the items are and where they lie, by modality."""
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[dict[str, int]]] = {}
    for item in items:
        hashes.setdefault(item.modality, []).append(item.mm_hash)
        place = {"offset": item.offset, "length": item.length}
        places.setdefault(item.modality, []).append(place)
    return {"mm_hashes": hashes, "mm_placeholders": places}


# --- on to the next stage


def write_parts(job: Job, rendered: Sequence[Rendered], name: str) -> None:
    """Hand the prompts and their items to the stages that follow."""
    job.write_msgpack(name, [_for_stages(prompt) for prompt in rendered])
    job.envelope.items = [item for prompt in rendered for item in prompt.items]
    _write_payloads(job, [item for prompt in rendered for item in prompt.media])


async def write_expanded(
    job: Job, ids: list[int], items: Sequence[Item], media: Sequence[MediaItem]
) -> None:
    """Put media into the prompt of a generate request, which is there already."""
    (prompt,) = await job.read_msgpack(PROMPTS)
    features = _places(items) if items else None
    job.write_msgpack(PROMPTS, [prompt | {"token_ids": ids, "features": features}])
    job.envelope.items = list(items)
    _write_payloads(job, media)


def _write_payloads(job: Job, media: Iterable[MediaItem]) -> None:
    for item in media:
        if item.kwargs is not None:
            job.write(kwargs_part(item.modality, item.entry or item.mm_hash), item.kwargs)
        if item.metadata is not None:
            job.write(metadata_part(item.modality, item.entry or item.mm_hash), item.metadata)


def _for_stages(prompt: Rendered) -> dict[str, Any]:
    features = _places(prompt.items) if prompt.items else None
    result = answer(prompt, features) | {"prompt_text": prompt.text}
    # On the wire an absent limit is 16 here and the server's default there (01 §5.4).
    result["sampling_params"]["max_tokens"] = prompt.sampling_params.max_tokens
    return result
