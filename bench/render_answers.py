"""Whether two render servers give the same answer to a body; tensors are compared by content.

The order of fields and the layout of batches in an item are not stable on vLLM's side.
"""

import base64
import json
import urllib.request
from typing import Any

from render_cases import PATH, Case

from schemas.mm_item import Tensor, decode_item

_COMPARED = 5 * 10**8
"""Number of the body that is compared: none of the load's."""


def check_equal(case: Case, ours: str, peer: str) -> None:
    """RuntimeError where the answers differ."""
    body = b"".join(case.body(_COMPARED))
    first, second = (_answer(url, body) for url in (ours, peer))
    differing = [key for key in first.keys() | second.keys() if first.get(key) != second.get(key)]
    if differing:
        raise RuntimeError(f"{case.name}: the answers differ in {sorted(differing)}")


def _answer(url: str, body: bytes) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + PATH, body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
    answer.pop("request_id")
    features = answer.pop("features") or {}
    for name in ("kwargs_data", "mm_metadata"):
        for modality, items in (features.get(name) or {}).items():
            features[name][modality] = [item and _fields(item) for item in items]
    return answer | {f"features.{name}": value for name, value in features.items()}


def _fields(item: str) -> dict[str, Any]:
    return {
        name: (_plain(field.data), field.factory, field.keep_on_cpu)
        for name, field in decode_item(base64.b64decode(item)).items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, bytes(value.data)
    return value
