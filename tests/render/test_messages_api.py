from typing import Any

import pytest

from schemas.anthropic import MessagesRequest
from schemas.chat import ChatCompletionRequest
from schemas.errors import ApiError
from workers.render.messages_api import chat_request

PNG = {"type": "base64", "media_type": "image/png", "data": "QQ=="}
TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {}}}


def convert(*, system_first: bool = False, **fields: Any) -> ChatCompletionRequest:
    body = {"model": "m", "max_tokens": 5, "messages": [], **fields}
    request = MessagesRequest.model_validate(body)
    return chat_request(request, system_first=system_first, disabled_effort="low")


def turns(*messages: tuple[str, Any], **options: Any) -> list[dict[str, Any]]:
    given = [{"role": role, "content": content} for role, content in messages]
    return convert(messages=given, **options).messages


def test_pictures_become_urls() -> None:
    url = {"type": "url", "url": "http://x/y.png"}
    blocks = [{"type": "image", "source": PNG}, {"type": "image", "source": url}]

    (message,) = turns(("user", blocks))

    urls = [part["image_url"]["url"] for part in message["content"]]
    assert urls == ["data:image/png;base64,QQ==", "http://x/y.png"]


def test_pictures_of_a_tool_result_go_to_a_message_of_their_own() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image", "source": PNG}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}

    tool, picture, rest = turns(("user", [result, {"type": "text", "text": "b"}]))

    assert tool == {"role": "tool", "tool_call_id": "t", "content": "a"}
    assert picture["content"][0]["type"] == "image_url"
    assert rest == {"role": "user", "content": "b"}


def test_thinking_and_calls_belong_to_the_assistants_turn() -> None:
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
    ]

    (message,) = turns(("assistant", blocks))

    assert message["reasoning"] == "t"
    assert message["content"] == "a"
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_system_messages_move_to_the_front_where_the_template_wants_it() -> None:
    conversation = [("user", "u"), ("system", "late")]

    assert [m["role"] for m in turns(*conversation)] == ["user", "system"]
    assert turns(*conversation, system_first=True, system="early") == [
        {"role": "system", "content": "earlylate"},
        {"role": "user", "content": "u"},
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": [TOOL]}, "auto"),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "required"),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "none"),
        ({"tool_choice": {"type": "auto"}}, "auto"),
    ],
)
def test_tool_choices_have_other_names(fields: Any, expected: str | None) -> None:
    assert convert(**fields).tool_choice == expected


def test_a_named_tool_and_single_calls() -> None:
    choice = {"type": "tool", "name": "f", "disable_parallel_tool_use": True}

    chat = convert(tools=[TOOL], tool_choice=choice)

    assert chat.tool_choice.function.name == "f"  # type: ignore[union-attr]
    assert chat.parallel_tool_calls is False


def test_a_billing_header_costs_a_block_but_not_a_plain_system_text() -> None:
    header = "x-anthropic-billing-header: 1\nrest"
    blocks = [{"type": "text", "text": header}, {"type": "text", "text": "x"}]

    assert turns(("user", "u"), system=header)[0] == {"role": "system", "content": header}
    assert turns(("user", "u"), system=blocks)[0] == {"role": "system", "content": "x"}


def test_tools_come_and_go_in_system_turns() -> None:
    other = {"type": "tool_definition", "definition": TOOL | {"name": "g"}}
    changes = [
        {"type": "tool_addition", "tool": other},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
    ]

    chat = convert(tools=[TOOL], messages=[{"role": "system", "content": changes}])

    assert chat.tools is not None
    assert [tool.function.name for tool in chat.tools] == ["g"]
    with pytest.raises(ApiError, match="not declared"):
        convert(messages=[{"role": "system", "content": changes[1:]}])


def test_thinking_becomes_effort_or_budget() -> None:
    assert convert(thinking={"type": "disabled"}).reasoning_effort == "low"
    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert convert(max_tokens=2000, thinking=enabled).thinking_token_budget == 1024
    assert convert(output_config={"effort": "high"}).reasoning_effort == "high"
