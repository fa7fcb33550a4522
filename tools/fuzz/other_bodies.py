"""Bodies of the Responses and Messages render endpoints. Knows nothing about answers."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from fuzz.bodies import Request
from fuzz.pictures import data_urls
from fuzz.values import JSON, TEXT, TEXT_OR_LITERAL, Strategy, chosen, rarely, some

_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
_EFFORT = chosen("none", "low", "medium", "high")
_ARGUMENTS = rarely(
    chosen("x", "[]", ""), st.dictionaries(chosen("a", "é"), JSON, max_size=2).map(json.dumps), 6
)


def record(kind: str, **fields: Strategy) -> Strategy:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def _either(*choices: Strategy) -> Strategy:
    return st.one_of(*choices)


_ROLE = chosen("user", "user", "assistant", "system", "developer")
_INPUT_TEXTS = st.lists(record("input_text", text=TEXT_OR_LITERAL), max_size=3)
_INPUT_PARTS = st.lists(
    _either(
        record("input_text", text=TEXT),
        record("input_image", image_url=data_urls(), detail=chosen("auto", "low")),
    ),
    min_size=1,
    max_size=2,
)
_OUTPUTS = st.lists(record("output_text", text=TEXT, annotations=st.just([])), max_size=2)
_STATUS = chosen("completed", "in_progress", "incomplete")
_ITEM = _either(
    st.fixed_dictionaries({"role": _ROLE, "content": _either(TEXT_OR_LITERAL, _INPUT_TEXTS)}),
    record("message", role=_ROLE, content=_INPUT_TEXTS),
    record("message", role=st.just("assistant"), id=st.just("m"), status=_STATUS, content=_OUTPUTS),
    record("function_call", call_id=chosen("c", "d"), name=chosen("f", "g"), arguments=_ARGUMENTS),
    record("function_call_output", call_id=chosen("c", "d"), output=_either(TEXT, _INPUT_TEXTS)),
    record(
        "reasoning",
        id=st.just("r"),
        summary=st.lists(record("summary_text", text=TEXT), max_size=2),
        content=_either(st.none(), st.lists(record("reasoning_text", text=TEXT), max_size=2)),
    ),
)
_ODD_ITEM = chosen(
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    {"type": "item_reference", "id": "x"},
    {"type": "nonsense"},
    {"role": "odd", "content": "x"},
    {"role": "user"},
    {},
    5,
)
_WITH_PICTURES = record("message", role=st.just("user"), content=_INPUT_PARTS)
_ITEMS = st.lists(rarely(_ODD_ITEM, rarely(_WITH_PICTURES, _ITEM, 12)), min_size=1, max_size=5)
_FUNCTION = record(
    "function",
    name=chosen("f", "g"),
    description=_either(st.none(), TEXT),
    parameters=chosen(None, {}, _SCHEMA),
    strict=chosen(True, False, None),
)
_RESPONSES: Mapping[str, Strategy] = {
    "model": chosen("m", None),
    "instructions": _either(st.none(), TEXT_OR_LITERAL),
    "max_output_tokens": _either(st.none(), st.integers(1, 3000)),
    "temperature": _either(st.none(), st.floats(0, 2)),
    "top_p": _either(st.none(), st.floats(0.01, 1)),
    "reasoning": st.one_of(st.none(), st.fixed_dictionaries({"effort": _EFFORT})),
    "text": chosen(
        None,
        {"format": {"type": "text"}},
        {"format": {"type": "json_object"}},
        {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}},
    ),
    "truncation": chosen("auto", "disabled"),
    "stream": st.booleans(),
    "top_logprobs": chosen(None, 0, 2),
    "include": chosen(None, [], ["message.output_text.logprobs"]),
    "parallel_tool_calls": st.booleans(),
    "request_id": chosen("resp_1", "é"),
    "metadata": chosen(None, {"a": "b"}),
    "store": st.booleans(),
    "include_reasoning": st.booleans(),
    "chat_template_kwargs": chosen(None, {"add_vision_id": True}, {"enable_thinking": False}),
    "cache_salt": chosen("a", "é"),
    "mm_payload": chosen("tensors", "none"),
    "top_k": chosen(-1, 0, 3),
    "seed": st.integers(-1, 9),
}
_RESPONSES_ODD: Mapping[str, Strategy] = {
    "model": chosen("nope", 5),
    "previous_response_id": chosen("resp_x", ""),
    "max_output_tokens": chosen(0, -1, "x", 10**7),
    "temperature": chosen(-1, "x"),
    "input": chosen(None, [], 5, {}, ["x"]),
    "tool_choice": chosen("auto", "required", "x", {"type": "function", "name": "f"}),
    "background": chosen(True, False),
    "truncation": chosen("x", None),
    "text": chosen({"format": {"type": "x"}}, "x"),
    "cache_salt": chosen("", "a/b"),
    "prompt": chosen({"id": "x"}, None),
    "top_logprobs": chosen(-1, 99),
}


@st.composite
def responses(draw: st.DrawFn) -> Request:
    body = {"input": draw(_either(TEXT_OR_LITERAL, _ITEMS))}
    if draw(st.integers(0, 5)) == 3:
        body |= {"tools": draw(st.lists(_FUNCTION, min_size=1, max_size=2)), "tool_choice": "none"}
    return Request("/v1/responses/render", body | draw(some(_RESPONSES, _RESPONSES_ODD)))


def _source(url: str) -> dict[str, Any]:
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": kind, "data": data}


_IMAGE = record("image", source=data_urls().map(_source))
_TEXT_BLOCK = record("text", text=TEXT_OR_LITERAL)
_RESULT = _either(TEXT, st.none(), st.lists(rarely(_IMAGE, _TEXT_BLOCK, 8), max_size=2))
_BLOCK = _either(
    _TEXT_BLOCK,
    record("thinking", thinking=TEXT, signature=st.just("s")),
    record("tool_use", id=chosen("t", "u"), name=chosen("f", "g"), input=chosen({}, {"a": 1})),
    record("tool_result", tool_use_id=chosen("t", "u"), content=_RESULT),
    record("redacted_thinking", data=st.just("x")),
)
_ODD_BLOCK = _either(
    TEXT,
    chosen({"type": "nonsense"}, {"type": "text"}, {}, 5, {"type": "image"}, {"type": "tool_use"}),
    chosen({"type": "image", "source": {"type": "url", "url": "ftp://example.com/x"}}),
)
_BLOCKS = st.lists(rarely(_ODD_BLOCK, rarely(_IMAGE, _BLOCK, 12)), max_size=4)
_MESSAGE = st.fixed_dictionaries(
    {
        "role": rarely(chosen("tool", "odd"), chosen("user", "user", "assistant", "system"), 30),
        "content": rarely(chosen(None, 5), _either(TEXT_OR_LITERAL, _BLOCKS), 30),
    }
)
_ANTHROPIC_TOOL = st.fixed_dictionaries(
    {"name": chosen("f", "g"), "input_schema": chosen({}, {"properties": {}}, _SCHEMA)},
    optional={"description": TEXT},
)
_MESSAGES: Mapping[str, Strategy] = {
    "system": _either(TEXT_OR_LITERAL, st.lists(_TEXT_BLOCK, max_size=2)),
    "temperature": st.floats(0, 1),
    "top_p": st.floats(0.01, 1),
    "top_k": chosen(-1, 0, 3),
    "stop_sequences": st.lists(chosen("a", "日"), max_size=3),
    "stream": st.booleans(),
    "metadata": chosen(None, {"user_id": "x"}),
    "thinking": chosen(
        {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}
    ),
    "output_config": chosen(
        {"effort": "low"}, {"format": {"type": "json_schema", "schema": _SCHEMA}}
    ),
    "cache_salt": chosen("a", "é"),
    "mm_payload": chosen("tensors", "none"),
    "return_mm_kwargs": st.booleans(),
}
_MESSAGES_ODD: Mapping[str, Strategy] = {
    "model": chosen("nope", None, ""),
    "max_tokens": chosen(None, 0, -1, "x", 10**7),
    "messages": chosen([], None, [{}], "x"),
    "tool_choice": chosen({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "f"}, "x"),
    "thinking": chosen({"type": "x"}, {"type": "enabled"}, "x"),
    "output_config": chosen({"effort": "x"}, {"format": {"type": "x"}}),
    "temperature": chosen(-1, 3, "x"),
    "cache_salt": chosen("", "a/b"),
}


@st.composite
def messages(draw: st.DrawFn) -> Request:
    body = {"model": "m", "max_tokens": draw(st.integers(1, 3000))}
    body["messages"] = draw(st.lists(_MESSAGE, min_size=1, max_size=4))
    if draw(st.integers(0, 5)) == 3:
        body["tools"] = draw(st.lists(_ANTHROPIC_TOOL, min_size=1, max_size=2))
        body["tool_choice"] = {"type": "none"}
    return Request("/v1/messages/render", body | draw(some(_MESSAGES, _MESSAGES_ODD)))
