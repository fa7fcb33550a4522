"""Which input items of a Responses request are items at all; contents come back as they were."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.openai_responses import ResponsesRequest

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "more": 1},
    {"type": "function_call_output", "output": "x"},
    {"type": "reasoning", "summary": []},
    {"type": "web_search_call", "id": "x", "status": "completed", "action": {}},
    {"id": "x"},
]
NO_ITEMS: list[Any] = [
    {},
    5,
    {"type": "nonsense", "role": "user", "content": "x"},
    {"type": None, "role": "user", "content": "x"},
    {"role": "odd", "content": "x"},
    {"role": "user"},
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"type": "function_call", "name": "f"},
    {"type": "function_call_output", "call_id": "c"},
    {"type": "reasoning"},
    {"type": "web_search_call"},
]


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_is_kept_as_it_came(item: dict[str, Any]) -> None:
    assert ResponsesRequest.model_validate({"input": [item]}).input == [item]


@pytest.mark.parametrize("item", NO_ITEMS)
def test_what_has_no_form_of_an_item_is_refused(item: Any) -> None:
    with pytest.raises(ValidationError):
        ResponsesRequest.model_validate({"input": [{"role": "user", "content": "x"}, item]})


def test_an_empty_object_is_an_empty_input() -> None:
    assert ResponsesRequest.model_validate({"input": {}}).input == []
    with pytest.raises(ValidationError):
        ResponsesRequest.model_validate({"input": {"role": "user"}})
