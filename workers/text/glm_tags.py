"""The grammar of GLM's tool calls: keys and values as tags of their own, plain data as the others.

A tool that is not strict still has its keys and the kinds of their values. Knows no request.
"""

import json
from collections.abc import Sequence
from typing import Any

from workers.text.structural_tags import (
    Choice,
    Format,
    any_text,
    either,
    json_schema,
    separated,
    tag,
    triggered,
)

_CALL = "<tool_call>"
_TAGS = (
    "<think>", "</think>", _CALL, "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>",
)  # fmt: skip
_BESIDE_CALLS = [mark for mark in _TAGS if mark != _CALL]
# With these a schema says more than which keys there are.
_NOT_PLAIN = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")


def glm(functions: Sequence[dict[str, Any]], choice: Choice) -> Format:
    """`<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`."""
    tags = [tag(_CALL + f["name"], _arguments(f), "</tool_call>") for f in functions]
    if functions and all(f["strict"] for f in functions):
        if choice == "forced":
            return tags[0]
        return triggered([_CALL], tags, excludes=_BESIDE_CALLS, at_least_one=choice == "required")
    if choice == "auto":
        return triggered([_CALL], tags, excludes=_BESIDE_CALLS)
    return separated(tags, stop_after_first=choice == "forced")


def _arguments(function: dict[str, Any]) -> Format:
    given = function.get("parameters")
    if function["strict"]:
        return json_schema(True if given is None else given, style="glm_xml")
    properties = _plain_properties(given or {})
    if properties is None:
        return json_schema(True, style="glm_xml")
    pairs = [_pair(key, schema) for key, schema in properties.items()]
    return {"type": "star", "content": pairs[0] if len(pairs) == 1 else either(*pairs)}


def _plain_properties(schema: dict[str, Any]) -> dict[str, Any] | None:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    is_open = schema.get("additionalProperties") is True
    return None if is_open or any(key in schema for key in _NOT_PLAIN) else properties


def _pair(key: str, schema: dict[str, Any]) -> Format:
    return {
        "type": "sequence",
        "elements": [
            _text(f"<arg_key>{key}</arg_key><arg_value>"),
            _value(schema),
            _text("</arg_value>"),
        ],
    }


def _value(schema: dict[str, Any]) -> Format:
    if "enum" in schema:
        words = [v if isinstance(v, str) else json.dumps(v) for v in schema["enum"]]
        return _one_of([_text(word) for word in words])
    kind = schema.get("type")
    if isinstance(kind, list):
        forms = [_value({"type": one}) for one in kind if one != "string"]
        return _one_of(forms + [any_text(_TAGS)] * ("string" in kind))
    if kind in (None, "string"):
        return any_text(_TAGS)
    return json_schema({"type": kind})


def _one_of(forms: Sequence[Format]) -> Format:
    return forms[0] if len(forms) == 1 else either(*forms)


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}
