from typing import Any

import pytest

from runtime.settings import RenderSettings
from schemas.errors import ApiError
from schemas.limits import PERMISSIVE
from schemas.openai_responses import ResponsesRequest
from tests.render.builders import DATA
from workers.render.requests import ChatInput
from workers.render.responses_api import responses_input
from workers.render.templating import Templates
from workers.text.private_tokens import PrivateTokens
from workers.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_directory(DATA / "models" / "tiny-qwen3-vl")
TEMPLATES = Templates(RenderSettings(), TOKENIZER, PrivateTokens(()))


def convert(given: Any, **fields: Any) -> ChatInput:
    request = ResponsesRequest.model_validate({"input": given, **fields})
    return responses_input(request, TEMPLATES, PERMISSIVE, hides_unused_tools=False)


def test_a_text_is_a_users_message_behind_the_instructions() -> None:
    assert convert("q", instructions="i").messages == [
        {"role": "system", "content": "i"},
        {"role": "user", "content": "q"},
    ]


def test_items_of_one_answer_are_one_turn() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    thought = {
        "type": "reasoning",
        "id": "r",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "t"}],
    }
    items = [
        thought,
        {"role": "assistant", "content": "a"},
        call,
        call | {"namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]

    turn, tool, *others = convert(items).messages

    assert (turn["reasoning"], turn["content"]) == ("t", "a")
    assert [c["function"]["name"] for c in turn["tool_calls"]] == ["f", "n__f"]
    assert tool == {"role": "tool", "content": "5", "tool_call_id": "c"}
    assert [message["content"] for message in others] == ["b", "c"]


def test_an_unfinished_answer_is_continued() -> None:
    text = {"type": "output_text", "text": "So", "annotations": []}
    item = {"type": "message", "role": "assistant", "id": "m", "content": [text]}

    finished = convert([item | {"status": "completed"}]).template
    unfinished = convert([item | {"status": "incomplete"}]).template

    assert not finished.continue_final_message
    assert unfinished.continue_final_message
    assert unfinished.kwargs["add_generation_prompt"] is False


def test_tools_of_every_kind_are_shown_as_functions() -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    tools = [
        function,
        {"type": "custom", "name": "free"},
        {"type": "web_search"},
    ]

    shown = convert("q", tools=tools).template.tools

    assert shown is not None
    assert [tool["function"]["name"] for tool in shown] == ["f", "free"]
    assert shown[0]["function"]["strict"] is True
    assert shown[1]["function"]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize(
    ("given", "fields", "param"),
    [
        ("q", {"previous_response_id": "r"}, "previous_response_id"),
        (
            [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}],
            {},
            "input",
        ),
    ],
)
def test_what_a_render_cannot_know_is_refused(given: Any, fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        convert(given, **fields)

    assert caught.value.param == param


F = {"type": "function", "name": "f"}
GROUP = {"type": "namespace", "name": "n", "tools": [F]}


@pytest.mark.parametrize(
    ("tools", "name", "chosen"),
    [
        ([F], "f", "f"),
        ([GROUP], "n__f", "n__f"),
        ([GROUP], "f", "n__f"),
        ([GROUP, F], "f", "f"),
        ([{"type": "web_search_preview"}], "f", None),
        ([F], "g", None),
        ([GROUP, GROUP | {"name": "o"}], "f", None),
    ],
)
def test_a_chosen_tool_must_be_there(tools: Any, name: str, chosen: str | None) -> None:
    body = {"tools": tools, "tool_choice": {"type": "function", "name": name}}

    if chosen is None:
        with pytest.raises(ApiError) as caught:
            convert("q", **body)
        assert caught.value.param == "tool_choice"
    else:
        choice = convert("q", **body).request.tool_choice
        assert isinstance(choice, dict)
        assert choice["name"] == chosen


def test_two_ways_to_constrain_the_output_are_one_too_many() -> None:
    text = {"format": {"type": "json_object"}}
    given = convert("q", text=text, structured_outputs={"regex": "a"})

    with pytest.raises(ApiError, match="Cannot specify both"):
        given.tools()
