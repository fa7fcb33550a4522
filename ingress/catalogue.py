"""The model list of `GET /v1/models` (06-launch §3.1). Knows no HTTP."""

import time
import uuid
from typing import Any

from runtime.model_dir import ModelDirectory

OWNER = "vllm"
"""What vLLM answers, and what its clients look for."""


def model_list(model: ModelDirectory) -> dict[str, Any]:
    created = int(time.time())
    cards = [_card(name, model, created) for name in model.served_names]
    return {"object": "list", "data": cards}


def _card(name: str, model: ModelDirectory, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "permission": [_permission(created)],
    }


def _permission(created: int) -> dict[str, Any]:
    return {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
