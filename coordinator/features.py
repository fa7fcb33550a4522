"""Takes a generate body apart: items and their payloads into parts, the rest into a prompt."""

from collections.abc import Mapping
from typing import Any

import msgpack

from runtime.request_body import off_loop
from runtime.stage import Job
from runtime.storage.digest import digest_of
from schemas.ec import content_of, descriptors
from schemas.envelope import PROMPTS, Item, kwargs_part, metadata_part
from schemas.features import FeatureItem, MultiModalFeatures
from schemas.generate import GenerateRequest
from schemas.identity import announced_key, entry_key
from schemas.mm_item import ItemReader, encode_item, metadata_only
from schemas.refusals import bad_request

MAX_TRANSFER_BYTES = 1024 * 1024
"""Of `ec_transfer_params`; a descriptor takes some 200 bytes."""
_PAYLOADS = {"kwargs_data", "mm_metadata"}


async def take_features(job: Job, body: GenerateRequest, raw: bytes) -> None:
    """Fill items, parts and ec_transfer_params of the job's envelope from a validated body."""
    envelope = job.envelope
    _check_transfer_size(body.ec_transfer_params)
    envelope.ec_transfer_params = body.ec_transfer_params or None
    job.write(PROMPTS, await off_loop(raw, _packed_prompts, body))
    if body.features is None:
        return
    owner = {"tenant": envelope.caller.tenant, "salt": body.cache_salt}
    envelope.items, parts = await off_loop(
        raw, items_and_parts, body.features, body.ec_transfer_params, owner
    )
    for name, data in parts.items():
        job.write(name, data)


def _packed_prompts(body: GenerateRequest) -> bytes:
    packed: bytes = msgpack.packb([prompt_of(body)])
    return packed


def _check_transfer_size(params: object) -> None:
    """They travel with the request to every later stop."""
    size = len(msgpack.packb(params))
    if size > MAX_TRANSFER_BYTES:
        raise bad_request(
            f"ec_transfer_params of {size} bytes are larger than the {MAX_TRANSFER_BYTES} accepted",
            "ec_transfer_params",
        )


def prompt_of(body: GenerateRequest) -> dict[str, object]:
    """The body as prefill gets it: everything but the payloads."""
    params = body.sampling_params
    sampling = params.to_wire()
    if "max_tokens" in params.model_fields_set:
        # The wire form leaves 16 out, and absent means the server's default here (03 §3).
        sampling["max_tokens"] = params.max_tokens
    prompt = body.model_dump(exclude={"features": _PAYLOADS, "sampling_params": True})
    return prompt | {"sampling_params": sampling}


def items_and_parts(
    features: MultiModalFeatures, ec_transfer_params: Any, owner: Mapping[str, Any]
) -> tuple[list[Item], dict[str, bytes]]:
    """Every item in prompt order, and checked payload bytes by part name.

    `owner` is the tenant and the salt that belong to every name. Raise ApiError for an unreadable
    payload. Metadata beside tensors is not looked at, whatever it is, and taken from them instead.
    """
    reader, known = ItemReader(), descriptors(ec_transfer_params)
    items: list[Item] = []
    parts: dict[str, bytes] = {}
    contents: dict[tuple[str, str], str] = {}
    # First those with tensors: others of the same hash in the same request mean the same.
    for given in sorted(features.items(), key=lambda given: given.kwargs_data is None):
        content, payloads = _payloads(given, reader)
        place = (given.modality, given.mm_hash)
        first = contents.setdefault(place, content or content_of(known.get(given.mm_hash, {})))
        item = _item(given, content or first, owner)
        items.append(item)
        for part, data in payloads.items():
            parts.setdefault(part(item.modality, item.key), data)
    return sorted(items, key=lambda item: item.offset), parts


def _payloads(given: FeatureItem, reader: ItemReader) -> tuple[str, dict[Any, bytes]]:
    """The digest of an item's tensors, and its payloads by what names their part."""
    if given.kwargs_data is not None:
        tensors, fields = reader.read(given.kwargs_data, "kwargs_data")
        metadata = metadata_only(fields)
        payloads = {kwargs_part: tensors}
        return digest_of(tensors), payloads | (
            {metadata_part: encode_item(metadata)} if metadata else {}
        )
    if given.mm_metadata is None:
        return "", {}
    return "", {metadata_part: reader.read(given.mm_metadata, "mm_metadata")[0]}


def _item(given: FeatureItem, content: str, owner: Mapping[str, Any]) -> Item:
    key = entry_key(given.mm_hash, content=content, **owner)
    return Item(
        modality=given.modality,
        mm_hash=given.mm_hash,
        entry="" if key == given.mm_hash else key,
        alias=announced_key(given.mm_hash, **owner),
        content=content,
        by_caller=True,
        offset=given.placeholder.offset,
        length=given.placeholder.length,
    )
