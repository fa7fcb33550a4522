"""What clients could send: bodies of the four render endpoints, mostly sound, now and then odd.

Knows nothing about answers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from fuzz.options import MEDIA_IO, PROCESSOR, TEMPLATES
from fuzz.pictures import data_urls
from fuzz.values import JSON, TEXT, TEXT_OR_LITERAL, Fields, Strategy, chosen, rarely, some
from fuzz.videos import video_urls


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    body: Any


SAMPLING: Fields = {
    "max_tokens": st.one_of(chosen(None, 1, 16), st.integers(1, 3000)),
    "temperature": st.one_of(chosen(None, 0, 1e-6, 0.001, 1), st.floats(0, 2)),
    "top_p": st.one_of(chosen(None, 1), st.floats(0.01, 1)),
    "top_k": chosen(None, -1, 0, 1, 5),
    "min_p": st.one_of(st.none(), st.floats(0, 1)),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 2),
    "n": chosen(1, 2),
    "seed": st.one_of(chosen(None, -1, 0), st.integers(-(2**63), 2**63 - 1)),
    "stop": st.one_of(
        st.none(), st.text(min_size=1, max_size=4), st.lists(chosen("a", "日"), max_size=4)
    ),
    "stop_token_ids": st.one_of(st.none(), st.lists(st.integers(0, 200), max_size=3)),
    "min_tokens": st.integers(0, 3),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": chosen(None, True, False),
    "spaces_between_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "logit_bias": st.dictionaries(st.integers(0, 99).map(str), st.floats(-200, 200), max_size=3),
    "bad_words": st.lists(chosen("a", "bad"), max_size=2),
    "allowed_token_ids": st.lists(st.integers(0, 99), min_size=1, max_size=3),
    "prompt_logprobs": chosen(None, 0, 2),
    "response_format": chosen(
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    ),
    "structured_outputs": chosen(
        {"regex": "a+"}, {"choice": ["a", "b"]}, {"json": {"type": "object"}}, {"json": "{}"}
    ),
    "priority": st.integers(-5, 5),
    "cache_salt": st.text(
        st.characters(codec="utf-8", exclude_characters="@/\\\0"), min_size=1, max_size=8
    ),
    "kv_transfer_params": st.dictionaries(chosen("a", "b"), JSON, max_size=2),
    "ec_transfer_params": st.dictionaries(chosen("a", "b"), JSON, max_size=2),
    "vllm_xargs": st.dictionaries(chosen("a", "b"), st.one_of(st.integers(0, 9), TEXT), max_size=2),
    "return_token_ids": chosen(None, True, False),
    "stream": st.booleans(),
    "user": TEXT,
    "unheard_of": JSON,
}
TRUNCATION: Fields = {
    "truncate_prompt_tokens": st.one_of(chosen(None, -1), st.integers(1, 60)),
    "truncation_side": chosen(None, "left", "right"),
    "return_token_offsets": st.booleans(),
    "add_special_tokens": st.booleans(),
}
ODD: Fields = {
    "n": JSON,
    "seed": JSON,
    "model": chosen("nope", "", 5),
    "max_tokens": chosen(0, -1, 10**7, "7", 1.5, True),
    "temperature": chosen(-1, 3, "1", 1e9),
    "top_p": chosen(0, 1.5, -0.1),
    "top_k": chosen(-2, 1.5),
    "min_tokens": chosen(-1, 10**6),
    "stop": chosen(["a"] * 5, [""], "", 5),
    "stop_token_ids": chosen(["a"], [-1], 5),
    "logit_bias": chosen({"x": 1}, {"5": "1"}, [1]),
    "stream_options": chosen({"include_usage": True}, {}, None),
    "prompt_logprobs": chosen(-1, -2),
    "truncate_prompt_tokens": chosen(0, -2, 10**7, "x"),
    "truncation_side": chosen("middle"),
    "cache_salt": chosen("", "a/b", 5, "x" * 129),
    "structured_outputs": chosen({"regex": "a", "choice": ["b"]}, {}, {"unknown": 1}),
    "response_format": chosen({"type": "json_schema"}, {"type": "x"}, "text"),
    "kv_transfer_params": chosen({"prompt_token_ids": [1, 2, 3]}, {"prompt_token_ids": "x"}, 5),
    "use_beam_search": chosen(True, False),
    "mm_processor_kwargs": PROCESSOR,
    "media_io_kwargs": MEDIA_IO,
    "allowed_token_ids": chosen([], [-1], [10**7]),
    "thinking_token_budget": chosen(-1, 5),
    "echo": chosen(True, False),
    "suffix": chosen("x", ""),
    "prompt_embeds": chosen("x", None),
    "priority": chosen("x", 2**63),
}


@st.composite
def _medium(draw: st.DrawFn, pool: Sequence[str]) -> dict[str, Any]:
    url: Any = draw(rarely(chosen(*_ODD_URLS), chosen(*pool), 30))
    modality = getattr(url, "modality", "image")
    kind = f"{modality}_url"
    part: dict[str, Any] = {"type": kind, kind: {"url": url}}
    if draw(st.integers(0, 3)) == 2:
        part["uuid"] = draw(rarely(chosen(5, "../a/b", "é"), chosen("u1", "u2"), 15))
        part[kind] = draw(chosen(part[kind], part[kind], url, None))
    if modality == "image" and draw(st.integers(0, 9)) == 3:
        part |= draw(
            chosen({"detail": "low"}, {"type": "input_image", "image_url": url, "detail": "auto"})
        )
    return part


_ODD_URLS = ("", "file:///etc/hostname", "ftp://example.com/a.png", "http://", "x", "https:///a")
_ODD_PARTS = st.one_of(
    TEXT,
    chosen(5, None, {"type": "text"}, {"text": "x"}, {"type": "text", "text": None}, {}),
    chosen({"type": "nonsense"}, {"type": 5}, {"type": "tool_reference", "name": "t"}),
    chosen({"type": "image_url", "image_url": "x"}, {"type": "image_url"}, {"image_url": {}}),
    chosen({"type": "audio_url", "audio_url": {"url": "x"}}, {"type": "input_audio"}),
    chosen({"type": "image_embeds", "image_embeds": "AAAA"}, {"type": "image_embeds"}),
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT, "extra": JSON}),
)


def _part(pool: Sequence[str]) -> Strategy:
    usual = st.fixed_dictionaries({"type": chosen("text", "input_text"), "text": TEXT_OR_LITERAL})
    texts = rarely(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("refusal"), "refusal": TEXT}),
            st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXT}),
            _ODD_PARTS,
        ),
        usual,
        30,
    )
    return st.one_of(texts, _medium(pool)) if pool else texts


_CALL = st.fixed_dictionaries(
    {
        "id": chosen("c1", "c2"),
        "type": rarely(chosen("custom", None), st.just("function")),
        "function": st.fixed_dictionaries(
            {
                "name": st.one_of(chosen("f", "get_weather"), TEXT),
                "arguments": rarely(
                    chosen("", "not json", "[1]", "null", {"a": 1}),
                    st.dictionaries(chosen("a", "é"), JSON, max_size=2).map(json.dumps),
                    6,
                ),
            }
        ),
    }
)


@st.composite
def _message(draw: st.DrawFn, pool: Sequence[str]) -> dict[str, Any]:
    role = draw(
        chosen(*["user"] * 5, *["assistant"] * 3, "system", "system", "tool", "developer", "odd")
    )
    parts = st.lists(_part(pool if role in ("user", "tool") else []), max_size=4)
    content = st.one_of(TEXT_OR_LITERAL, parts) if not pool else parts
    message = {"role": role, "content": draw(rarely(chosen(None, 5, {}, []), content, 30))}
    optional: dict[str, Strategy] = {"name": rarely(st.just(5), TEXT, 5)}
    match role:
        case "assistant":
            optional = {
                "tool_calls": st.lists(_CALL, max_size=3),
                "reasoning": TEXT,
                "reasoning_content": st.one_of(st.none(), TEXT),
                "refusal": TEXT,
                "content": st.none(),
            }
        case "tool":
            message["tool_call_id"] = draw(chosen("c1", "c2"))
    message |= draw(some(optional, {"extra": JSON}, 1))
    return message


_TOOL = st.fixed_dictionaries(
    {
        "type": rarely(chosen("custom", None), st.just("function")),
        "function": st.fixed_dictionaries(
            {"name": chosen("f", "g")},
            optional={
                "description": TEXT_OR_LITERAL,
                "parameters": st.one_of(
                    st.none(),
                    st.dictionaries(chosen("type", "properties", "$defs"), JSON, max_size=2),
                ),
                "strict": chosen(True, False, None),
                "extra": JSON,
            },
        ),
    }
)
_CHAT: Fields = (
    SAMPLING
    | TRUNCATION
    | {
        "model": chosen("m", None),
        "max_completion_tokens": st.one_of(st.none(), st.integers(1, 50)),
        "documents": chosen(None, [], [{"title": "a", "text": "b"}]),
        "reasoning_effort": chosen(None, "none", "low", "high", "max"),
        "include_reasoning": st.booleans(),
        "parallel_tool_calls": chosen(True, False, None),
        "chat_template_kwargs": st.one_of(
            chosen(
                None, {}, {"add_vision_id": True}, {"add_generation_prompt": False}, {"tools": None}
            ),
            chosen({"enable_thinking": False}, {"enable_thinking": None}, {"tokenize": True}),
            st.dictionaries(chosen("x", "add_vision_id", "documents"), JSON, max_size=2),
        ),
        "mm_payload": chosen("tensors", "none"),
        "return_mm_kwargs": chosen(None, True, False),
    }
)
_CHAT_ODD: Fields = ODD | {
    "messages": chosen([], None, "x", [{}], [5], [{"role": "user"}], [{"role": 5, "content": "x"}]),
    "tool_choice": chosen(
        "auto", "none", "required", "x", {"type": "function", "function": {"name": "f"}}
    ),
    "tools": st.one_of(chosen([], None, [{}]), st.lists(_TOOL, max_size=2)),
    "top_logprobs": chosen(0, 3),
    "logprob_token_ids": chosen([1], [-1]),
    "chat_template_kwargs": chosen({"chat_template": "x"}, 5, {"messages": []}),
    "continue_final_message": chosen(True, "x"),
    "mm_payload": chosen("x", None),
    "reasoning_effort": chosen("x", 5),
    "documents": chosen([{"a": 1}], "x"),
    "request_id": chosen("", 5, "é"),
}


@st.composite
def _chat(draw: st.DrawFn, pool: Sequence[str]) -> Request:
    body: dict[str, Any] = {
        "messages": draw(st.lists(_message(pool), min_size=1, max_size=2 if pool else 5))
    }
    match draw(st.integers(0, 11)):
        case 1 | 2:
            body |= {"tools": draw(st.lists(_TOOL, min_size=1, max_size=3)), "tool_choice": "none"}
        case 3 | 4:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        case 5:
            body |= {"add_generation_prompt": False}
        case 6:
            body |= {"logprobs": True, "top_logprobs": draw(st.integers(0, 5))}
        case 7:
            body |= {"stream": True, "stream_options": {"include_usage": draw(st.booleans())}}
    body |= draw(some(_CHAT, _CHAT_ODD)) | draw(_trusted(pool))
    return Request("/v1/chat/completions/render", body)


def _trusted(pool: Sequence[str]) -> Strategy:
    """What is refused unless the server trusts its clients, in one request of eight."""
    options = {"mm_processor_kwargs": PROCESSOR, "media_io_kwargs": MEDIA_IO}
    fields = {"chat_template": TEMPLATES, **(options if pool else {})}
    return rarely(some(fields, {}, 2), st.just({}), 8)


@st.composite
def chats_with_pictures(draw: st.DrawFn) -> list[Request]:
    """Requests that share media and uuids, in order: what the second finds the first left."""
    pool = draw(st.lists(rarely(video_urls(), data_urls(), 6), min_size=1, max_size=3))
    return draw(st.lists(_chat(pool), min_size=1, max_size=2))


CHATS = _chat([])
_IDS = st.lists(st.integers(0, 2000), max_size=6)


@st.composite
def completions(draw: st.DrawFn) -> Request:
    prompts = st.one_of(
        TEXT_OR_LITERAL, st.lists(TEXT, max_size=3), _IDS, st.lists(_IDS, max_size=3)
    )
    body = {"prompt": draw(rarely(chosen(None, [-1], ["a", [1]], 5, {}), prompts, 30))}
    own = SAMPLING | TRUNCATION | {"echo": st.booleans(), "logprobs": chosen(None, 0, 3)}
    return Request("/v1/completions/render", body | draw(some(own, ODD)))
