"""Outputs as models write them, well-formed and broken, for every parser. Strategies."""

import json
import unicodedata
from typing import Any

from hypothesis import strategies as st

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "opts": {"type": "object"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}},
]

# Marks of all parsers are ordinary characters here: only markup that is written has them.
# Tokenizers compose characters (NFC) before anything is a token, so only composed ones come back.
_CHARACTERS = st.characters(
    exclude_categories=("Cs", "Mn", "Mc"), exclude_characters="<>[]{}|="
).filter(lambda char: unicodedata.is_normalized("NFC", char))
words = st.text(_CHARACTERS, max_size=12) | st.sampled_from(
    ["Hello", " there.", "\n\n", "ß", "🫠", "👨‍👩‍👧", "北京", "สวัสดี", "�", '"', "\\", "'"]
)
# What looks like an unfinished character at the end of an output is never given out.
prose = (
    st.lists(words, max_size=6)
    .map("".join)
    .filter(lambda text: unicodedata.is_normalized("NFC", text))
    .map(lambda text: text.rstrip("\ufffd"))
)
_json_text = st.text(_CHARACTERS, max_size=12) | st.sampled_from(['a "quoted"', "é", "🫠", "1\n2"])
_scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | _json_text
values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_json_text, inner, max_size=3),
    max_leaves=6,
)
json_arguments = st.dictionaries(st.sampled_from(["city", "days", "x y", "é"]), values, max_size=3)
text_arguments = st.fixed_dictionaries(
    {}, optional={"city": _json_text, "days": st.integers(-99, 99), "opts": st.just({"a": [1]})}
)
names = st.sampled_from(["get_weather", "search"])
calls = st.lists(st.tuples(names, json_arguments), min_size=1, max_size=3)
text_calls = st.lists(st.tuples(st.just("get_weather"), text_arguments), min_size=1, max_size=3)


def hermes(content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    return content + "\n".join(
        "<tool_call>\n" + dump({"name": name, "arguments": given}) + "\n</tool_call>"
        for name, given in made
    )


def llama(_content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    return "; ".join(dump({"name": name, "parameters": given}) for name, given in made)


def mistral(content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    entries = [{"name": name, "arguments": given} for name, given in made]
    return content + "[TOOL_CALLS]" + dump(entries)


def mistral_v11(content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    return content + "".join(f"[TOOL_CALLS]{name}[ARGS]{dump(given)}" for name, given in made)


def granite(content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    entries = [{"name": name, "arguments": given} for name, given in made]
    return content + "<|tool_call|> " + dump(entries)


def deepseek_v3(content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dump(given)}\n```"
        "<｜tool▁call▁end｜>"
        for name, given in made
    )
    return f"{content}<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def deepseek_v31(content: str, made: list[tuple[str, Any]], dump: Any) -> str:
    written = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dump(given)}<｜tool▁call▁end｜>"
        for name, given in made
    )
    return f"{content}<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def pythonic(_content: str, made: list[tuple[str, Any]], _dump: Any) -> str:
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        for name, given in made
    )
    return f"[{', '.join(written)}]"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen3_coder(content: str, made: list[tuple[str, Any]], _dump: Any) -> str:
    return content + "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(
            f"<parameter={key}>\n{_as_text(value)}\n</parameter>\n" for key, value in given.items()
        )
        + "</function>\n</tool_call>"
        for name, given in made
    )


def glm(content: str, made: list[tuple[str, Any]], _dump: Any) -> str:
    return content + "".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_as_text(value)}</arg_value>\n"
            for key, value in given.items()
        )
        + "</tool_call>"
        for name, given in made
    )


WRITERS = {
    "hermes": (hermes, calls),
    "llama3_json": (llama, calls),
    "mistral": (mistral, calls),
    "granite": (granite, calls),
    "deepseek_v3": (deepseek_v3, calls),
    "deepseek_v31": (deepseek_v31, calls),
    "pythonic": (pythonic, text_calls),
    "qwen3_coder": (qwen3_coder, text_calls),
    "glm45": (glm, text_calls),
}
"""How each parser's model writes calls, and calls that it can write."""

dumpers = st.sampled_from(
    [
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    ]
)

_PIECES = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=", "</function>",
    "<parameter=", "</parameter>", ">", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|tool_call|>", "<|python_tag|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>", "{", "}", "[", "]", '"', "'", "\\", ",", ":", "=", "(", ")", "; ",
    '{"name": "search", "arguments": ', '{"name": ', '"arguments": {', "get_weather", "search(",
    "city", "\n", "```json\n", "\n```", "<", "<tool", "\\u", "d83d", "<|im_end|>", "1", "null",
)  # fmt: skip
rubbish = st.lists(st.sampled_from(_PIECES) | st.text(_CHARACTERS, max_size=4), max_size=25).map(
    "".join
)
