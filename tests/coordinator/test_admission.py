"""The way of a chat: over encode only where it has media."""

from typing import Any

import pytest

from coordinator.admission import plan
from schemas.chat import ChatCompletionRequest
from schemas.routes import MEDIA, TEXT, Kind

PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("part", "route"),
    [
        ({"type": "text", "text": "hi"}, TEXT),
        ({"text": "hi"}, TEXT),
        ({"type": "tool_reference", "name": "f"}, TEXT),
        ({"type": "refusal", "refusal": "no"}, TEXT),
        ({"type": "thinking", "thinking": "so"}, TEXT),
        (PICTURE, MEDIA),
        ({"image_url": "data:,"}, MEDIA),
    ],
)
def test_only_media_take_the_media_route(part: dict[str, Any], route: Any) -> None:
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "x", "content": [part]}]})

    assert plan(Kind.CHAT, body, None) == list(route[Kind.CHAT])
