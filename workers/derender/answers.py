"""The bytes of an answer. Knows no request."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

# Keys of the newer protocol that coupled answers do not have (07 §1).
NOT_COUPLED: Mapping[str, Any] = {"choices": {"__all__": {"weight_versions"}}}


def answer_bytes(answer: BaseModel, *, without: Mapping[str, Any] | None = None) -> bytes:
    try:
        return answer.model_dump_json(exclude=dict(without) if without else None).encode()
    except PydanticSerializationError:
        # Half a surrogate pair that a caller's ids or messages brought along: no UTF-8, but JSON.
        return json.dumps(answer.model_dump(exclude=dict(without) if without else None)).encode()
