"""The generate response (03 §5) around what a stage produced: ids, usage, echoes.

Every key is always present. Knows no engine and no bus.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.envelope import Envelope, Item
from schemas.generate import ID_PREFIX, GenerateChoice, GenerateLogprobs, GenerateResponse
from schemas.usage import Usage

Prompt = Mapping[str, Any]
"""An entry of the part `prompts`."""


def response_fields(
    prompt: Prompt, envelope: Envelope, served_name: str, *, completion_tokens: int
) -> dict[str, Any]:
    """What all answers share, as keyword arguments of the response models."""
    num_prompt = len(prompt["token_ids"])
    wants_ids = bool(prompt.get("return_token_ids"))
    return {
        "request_id": request_id(prompt, envelope),
        "model": served_name,
        "created": int(time.time()),
        "usage": Usage(
            prompt_tokens=num_prompt,
            completion_tokens=completion_tokens,
            total_tokens=num_prompt + completion_tokens,
        ),
        "prompt_token_ids": list(prompt["token_ids"]) if wants_ids else None,
        "mm_placeholders": placeholders(prompt) if wants_ids else None,
    }


def request_id(prompt: Prompt, envelope: Envelope) -> str:
    """The caller's id wins over the body's (03 §3)."""
    return ID_PREFIX + (envelope.caller.request_id or prompt.get("request_id") or envelope.id)


def placeholders(prompt: Prompt) -> dict[str, list[dict[str, int]]] | None:
    return (prompt.get("features") or {}).get("mm_placeholders") or None


def num_rendered_items(prompt: Prompt) -> int:
    hashes: Mapping[str, Sequence[str]] = (prompt.get("features") or {}).get("mm_hashes") or {}
    return sum(len(of_modality) for of_modality in hashes.values())


def items_of(items: Sequence[Item], prompt_index: int) -> list[Item]:
    return [item for item in items if item.prompt == prompt_index]


def producer_response(
    prompt: Prompt, envelope: Envelope, served_name: str, ec_transfer_params: dict[str, Any] | None
) -> dict[str, Any]:
    """The answer of an encode-only server: no tokens, whatever was asked for."""
    scored = (prompt.get("sampling_params") or {}).get("logprobs") is not None
    choice = GenerateChoice(
        index=0,
        finish_reason="stop",
        token_ids=[],
        weight_versions=[],
        logprobs=GenerateLogprobs(content=[]) if scored else None,
    )
    shared = response_fields(prompt, envelope, served_name, completion_tokens=0)
    return GenerateResponse(
        **shared, ec_transfer_params=ec_transfer_params, choices=[choice]
    ).model_dump()
