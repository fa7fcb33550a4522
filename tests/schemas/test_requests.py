"""Rules of single endpoints that no recorded body shows."""

import json
from typing import Any

import pytest

from schemas.checks import check_request
from schemas.completion import CompletionRequest
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.routes import Kind
from schemas.tokenize import TokenizeChatRequest, TokenizeCompletionRequest
from schemas.validation import parse_body

LIMITS = ModelLimits(max_model_len=4096, vocab_size=2048, served_names=("m",))
HI = [{"role": "user", "content": "hi"}]


def admitted(kind: Kind, body: dict[str, Any]) -> Any:
    request = parse_body(kind, json.dumps(body).encode(), LIMITS)
    check_request(kind, request, LIMITS)
    return request


def refusal(kind: Kind, body: dict[str, Any]) -> tuple[int, str, str | None]:
    with pytest.raises(ApiError) as caught:
        admitted(kind, body)
    return caught.value.status, caught.value.type, caught.value.param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([], []),
    ],
)
def test_a_completion_lists_its_prompts(prompt: Any, prompts: list[Any]) -> None:
    assert CompletionRequest.model_validate({"prompt": prompt}).prompts == prompts


def test_beam_search_is_refused_by_render_and_left_out_elsewhere() -> None:
    body = {"messages": HI, "use_beam_search": True}
    assert refusal(Kind.CHAT_RENDER, body) == (400, "BadRequestError", None)
    assert refusal(Kind.CHAT, body) == (501, "NotImplementedError", None)


def test_a_tool_choice_follows_from_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert admitted(Kind.CHAT_RENDER, {"messages": HI, "tools": tools}).tool_choice == "auto"
    assert admitted(Kind.CHAT_RENDER, {"messages": HI}).tool_choice == "none"


def test_tools_are_dumped_as_a_template_sees_them() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {}, "zzz": 1}},
        {"type": "function", "function": {"name": "g", "strict": True}, "defer_loading": True},
    ]
    dumped = [t.model_dump() for t in admitted(Kind.CHAT, {"messages": HI, "tools": tools}).tools]
    assert dumped == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": {}}},
        {
            "type": "function",
            "function": {
                "name": "g",
                "description": None,
                "parameters": None,
                "strict": True,
                "defer_loading": True,
            },
            "defer_loading": True,
        },
    ]


def test_forwarded_prompt_ids_are_dropped_beside_media() -> None:
    transfer = {"prompt_token_ids": [1], "other": 2}
    image = [{"type": "image_url", "image_url": {"url": "u"}}]
    body = {"messages": [{"role": "user", "content": image}], "kv_transfer_params": transfer}
    assert admitted(Kind.CHAT_RENDER, body).kv_transfer_params == {"other": 2}
    body["messages"] = HI
    assert admitted(Kind.CHAT_RENDER, body).kv_transfer_params == transfer


@pytest.mark.parametrize(
    ("given_keys", "payload"),
    [
        ({}, "tensors"),
        ({"return_mm_kwargs": False}, "none"),
        ({"return_mm_kwargs": False, "mm_payload": "tensors"}, "tensors"),
    ],
)
def test_the_old_name_of_mm_payload_yields(given_keys: dict[str, Any], payload: str) -> None:
    assert admitted(Kind.CHAT_RENDER, {"messages": HI, **given_keys}).mm_payload == payload


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0", "x" * 129, "", 5])
def test_cache_salts_are_plain(salt: Any) -> None:
    for kind, body in (
        (Kind.CHAT, {"messages": HI}),
        (Kind.COMPLETION, {"prompt": "a"}),
        (Kind.GENERATE, {"token_ids": [1], "sampling_params": {}}),
    ):
        assert refusal(kind, {**body, "cache_salt": salt}) == (400, "BadRequestError", "cache_salt")
    assert admitted(Kind.CHAT, {"messages": HI, "cache_salt": "é" * 128})


def test_tokenize_takes_either_form() -> None:
    assert isinstance(admitted(Kind.TOKENIZE, {"prompt": ""}), TokenizeCompletionRequest)
    chat = admitted(Kind.TOKENIZE, {"messages": HI, "tools": []})
    assert isinstance(chat, TokenizeChatRequest)
    assert chat.to_chat_request().tools is None
    assert refusal(Kind.TOKENIZE, {}) == (400, "Bad Request", "body.prompt")


def test_rendering_keeps_no_state() -> None:
    body = {"input": "Hi", "previous_response_id": "resp_1"}
    assert refusal(Kind.RESPONSES_RENDER, body) == (
        400,
        "invalid_request_error",
        "previous_response_id",
    )
    assert admitted(Kind.RESPONSES_RENDER, {"input": "Hi"}).tool_choice == "none"


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0},
        {"model": ""},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"tool_choice": {"type": "tool"}},
        {"messages": [{"role": "user", "content": [{"type": "tool_removal"}]}]},
        {"system": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}]},
    ],
)
def test_messages_bodies_follow_anthropics_rules(changes: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 100, "messages": HI}
    assert admitted(Kind.MESSAGES_RENDER, body)
    assert refusal(Kind.MESSAGES_RENDER, body | changes)[:2] == (400, "Bad Request")
