"""Takes a generate body apart: items and their payloads into parts, the rest into a prompt."""

import asyncio
import binascii

import msgpack
import pybase64
from schemas.generate import GenerateRequest, MultiModalFeatures
from schemas.mm_item import decode_item, encode_item, metadata_only

from runtime.stage import Job
from schemas.envelope import PROMPTS, Item, kwargs_part, metadata_part
from schemas.errors import ApiError, DecodeError

_PAYLOADS = {"kwargs_data", "mm_metadata"}


async def take_features(job: Job, body: GenerateRequest) -> None:
    """Fill items, parts and ec_transfer_params of the job's envelope from a validated body."""
    job.envelope.ec_transfer_params = body.ec_transfer_params or None
    job.write(PROMPTS, msgpack.packb([prompt_of(body)]))
    if body.features is None:
        return
    job.envelope.items = list(items_of(body.features))
    # Megabytes of base64: not on the event loop.
    for name, data in (await asyncio.to_thread(payloads_of, body.features)).items():
        job.write(name, data)


def prompt_of(body: GenerateRequest) -> dict[str, object]:
    """The body as prefill gets it: everything but the payloads."""
    prompt = body.model_dump(exclude={"features": _PAYLOADS, "content_parts": True})
    prompt["sampling_params"] = body.sampling_params.to_wire()
    return prompt


def items_of(features: MultiModalFeatures) -> list[Item]:
    """Every item in prompt order."""
    items = [
        Item(modality=modality, mm_hash=mm_hash, offset=place.offset, length=place.length)
        for modality, hashes in features.mm_hashes.items()
        for mm_hash, place in zip(hashes, features.mm_placeholders[modality], strict=True)
    ]
    return sorted(items, key=lambda item: item.offset)


def payloads_of(features: MultiModalFeatures) -> dict[str, bytes]:
    """Checked payload bytes by part name. Metadata beside tensors is ignored and taken from them.

    Raise ApiError naming the item whose payload is unreadable (02 §4.4).
    """
    parts: dict[str, bytes] = {}
    for modality, hashes in features.mm_hashes.items():
        for index, mm_hash in enumerate(hashes):
            kwargs = _entry(features.kwargs_data, modality, index)
            metadata = _entry(features.mm_metadata, modality, index)
            if kwargs is not None:
                data = _decoded(kwargs, f"features.kwargs_data.{modality}[{index}]")
                parts[kwargs_part(modality, mm_hash)] = data
                fields = metadata_only(decode_item(data))
                if fields:
                    parts[metadata_part(modality, mm_hash)] = encode_item(fields)
            elif metadata is not None:
                data = _decoded(metadata, f"features.mm_metadata.{modality}[{index}]")
                parts.setdefault(metadata_part(modality, mm_hash), data)
    return parts


def _entry(payloads: dict[str, list[str | None]] | None, modality: str, index: int) -> str | None:
    return (payloads or {}).get(modality, [None] * (index + 1))[index]


def _decoded(text: str, where: str) -> bytes:
    try:
        data = pybase64.b64decode(text)
        decode_item(data)
    except (binascii.Error, ValueError, DecodeError) as error:
        raise ApiError(f"{where} is not a MultiModalKwargsItem: {error}") from None
    return data
