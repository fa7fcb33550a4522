"""Takes a generate body apart: items and their payloads into parts, the rest into a prompt."""

import msgpack

from runtime.request_body import off_loop
from runtime.stage import Job
from schemas.envelope import PROMPTS, Item, kwargs_part, metadata_part
from schemas.features import MultiModalFeatures
from schemas.generate import GenerateRequest
from schemas.mm_item import decode_item, encode_item, item_bytes, metadata_only
from schemas.refusals import bad_request

MAX_TRANSFER_BYTES = 1024 * 1024
"""Of `ec_transfer_params`; a descriptor takes some 200 bytes."""
_PAYLOADS = {"kwargs_data", "mm_metadata"}


async def take_features(job: Job, body: GenerateRequest, raw: bytes) -> None:
    """Fill items, parts and ec_transfer_params of the job's envelope from a validated body."""
    _check_transfer_size(body.ec_transfer_params)
    job.envelope.ec_transfer_params = body.ec_transfer_params or None
    job.write(PROMPTS, await off_loop(raw, _packed_prompts, body))
    if body.features is None:
        return
    job.envelope.items = await off_loop(raw, items_of, body.features)
    for name, data in (await off_loop(raw, payloads_of, body.features)).items():
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


def items_of(features: MultiModalFeatures) -> list[Item]:
    """Every item in prompt order."""
    items = [
        Item(
            modality=item.modality,
            mm_hash=item.mm_hash,
            offset=item.placeholder.offset,
            length=item.placeholder.length,
        )
        for item in features.items()
    ]
    return sorted(items, key=lambda item: item.offset)


def payloads_of(features: MultiModalFeatures) -> dict[str, bytes]:
    """Checked payload bytes by part name; raise ApiError for an unreadable one (02 §4.4).

    Metadata beside tensors is not looked at, whatever it is, and taken from them instead.
    """
    parts: dict[str, bytes] = {}
    for item in features.items():
        metadata_name = metadata_part(item.modality, item.mm_hash)
        if item.kwargs_data is not None:
            tensors = item_bytes(item.kwargs_data)
            parts[kwargs_part(item.modality, item.mm_hash)] = tensors
            fields = metadata_only(decode_item(tensors))
            if fields:
                parts[metadata_name] = encode_item(fields)
        elif item.mm_metadata is not None:
            parts.setdefault(metadata_name, item_bytes(item.mm_metadata))
    return parts
