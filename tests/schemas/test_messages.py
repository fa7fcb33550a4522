"""Forms of messages and parts, each row as vLLM's request model answered it."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.chat import ChatCompletionRequest
from schemas.errors import ApiError
from schemas.messages import check_parts

IMAGE = {"type": "image_url", "image_url": {"url": "u"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

KEPT = [
    {"role": "user", "content": "hi", "name": "bob", "foo": 1},
    {"role": "user"},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "text", "text": "a", "extra": 1}]},
    {"role": "user", "content": [IMAGE | {"uuid": "x"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "x"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": "u"}]},
    {"role": "user", "content": [{"image_url": "u", "uuid": "x"}]},
    {"role": "user", "content": ["plain", {"type": "text", "text": "b"}]},
    {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}, "uuid": "z"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]},
    {"role": "user", "content": [{"type": "image_embeds", "image_embeds": None, "uuid": "a"}]},
    {"role": "user", "content": "x", "task": "t"},
    {"role": "wizard", "content": [{"type": "hologram"}]},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": None, "tool_calls": [], "reasoning": "r"},
    {"role": "assistant", "tool_calls": [CALL | {"x": 1}]},
    {"role": "assistant", "content": "a", "tool_calls": None},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]},
    {"role": "tool", "content": "res"},
    {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "1"},
    {"role": "function", "content": None, "name": "f"},
    {
        "role": "developer",
        "content": "x",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    {"role": "system", "content": [IMAGE]},
]

BAD_PARTS = [
    [{"type": "input_text", "text": "u"}],
    [{"type": "hologram", "hologram": "u"}],
    [{"text": "no type"}],
    [{"type": "text", "text": None}],
    [{}],
    [5],
    [{"type": "image_url", "image_url": {"url": 5}}],
    [{"type": "image_url", "image_url": {"url": "u", "detail": "weird"}}],
    [{"type": "input_audio", "input_audio": {"data": "AA", "format": "flac"}}],
    {"type": "text", "text": "not a list"},
]

DEVELOPER = "ChatCompletionDeveloperMessageParam"
REFUSED = [
    ({"role": "user", "content": None}, ("messages", 0, DEVELOPER, "content", "str")),
    ({"role": "tool", "content": None}, ("messages", 0, DEVELOPER, "content", "str")),
    ({"role": 5, "content": "x"}, ("messages", 0, DEVELOPER, "role")),
    ({"content": "x"}, ("messages", 0, DEVELOPER, "role")),
    ("hi", ("messages", 0, DEVELOPER)),
]


def parsed(*messages: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": list(messages)})


@pytest.mark.parametrize("message", KEPT)
def test_a_message_with_a_known_form_is_kept_whole(message: dict[str, Any]) -> None:
    messages = parsed(message).messages
    assert messages == [message]
    check_parts(messages)


@pytest.mark.parametrize("content", BAD_PARTS)
def test_bad_parts_are_told_only_when_the_messages_are_rendered(content: Any) -> None:
    messages = parsed({"role": "user", "content": content}).messages
    assert messages[0]["content"] == content
    with pytest.raises(ApiError) as caught:
        check_parts(messages)
    assert (caught.value.status, caught.value.type, caught.value.param) == (
        400,
        "BadRequestError",
        None,
    )


@pytest.mark.parametrize(("message", "loc"), REFUSED)
def test_a_message_of_no_form_is_refused_under_the_name_of_the_first(
    message: Any, loc: Any
) -> None:
    with pytest.raises(ValidationError) as caught:
        parsed(message)
    assert caught.value.errors()[0]["loc"] == loc


def test_a_bad_tool_call_is_located_by_its_own_index() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    with pytest.raises(ValidationError) as caught:
        parsed({"role": "assistant", "tool_calls": [call]})
    assert caught.value.errors()[0]["loc"][:2] == (0, "ChatCompletionMessageFunctionToolCallParam")


def test_reasoning_content_gets_its_present_name() -> None:
    body = {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "because"}]}
    messages = ChatCompletionRequest.model_validate(body).messages
    assert messages == [{"role": "assistant", "content": "a", "reasoning": "because"}]
    assert "reasoning_content" in body["messages"][0]


def test_only_the_first_bad_message_is_described() -> None:
    with pytest.raises(ValidationError) as caught:
        parsed(*[{}] * 1000)
    assert caught.value.error_count() < 20


@pytest.mark.parametrize("messages", [None, 5])
def test_messages_that_cannot_be_iterated_are_a_domain_error(messages: object) -> None:
    with pytest.raises(ApiError) as caught:
        ChatCompletionRequest.model_validate({"messages": messages})
    assert (caught.value.type, caught.value.param) == ("BadRequestError", None)
