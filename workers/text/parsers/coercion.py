"""Arguments written as plain text become values of the kinds that a tool's schema names.

The order in which kinds are tried is vLLM's (vllm.tool_parsers.utils).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

_ALIASES = {
    "string": ("str", "text", "varchar", "char", "enum"),
    "integer": ("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"),
    "number": ("float", "float32", "float64", "double"),
    "boolean": ("bool",),
    "object": ("dict",),
    "array": ("arr", "list", "sequence"),
}
_KINDS = {alias: kind for kind, aliases in _ALIASES.items() for alias in aliases}
_ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
_MAX_DEPTH = 32
"""Of alternatives within alternatives in a caller's schema."""


def kinds_of(schema: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; string where it says nothing."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset(("string",))
    given = schema.get("type")
    kinds = {k for k in (given if isinstance(given, list) else [given]) if isinstance(k, str)}
    values = schema.get("enum")
    kinds |= {_kind_of(value) for value in values} if isinstance(values, list) else set()
    for word in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(word)
        for choice in choices if isinstance(choices, list) else ():
            kinds |= kinds_of(choice, depth + 1)
    return frozenset(kinds) or frozenset(("string",))


def _kind_of(value: Any) -> str:
    for kind, classes in (
        ("boolean", bool),
        ("integer", int),
        ("number", float),
        ("string", str),
        ("array", list),
        ("object", dict),
    ):
        if isinstance(value, classes):
            return kind
    return "null"


def coerced(text: str, kinds: frozenset[str]) -> Any:
    """The first kind in vLLM's order that the text can be read as; else the text."""
    names = {_KINDS.get(kind.strip().lower(), kind.strip().lower()) for kind in kinds}
    for kind in _ORDER:
        if kind == "string" and kind in names:
            return text
        if kind in names:
            found, value = _READERS[kind](text)
            if found:
                return value
    return _json(text)[1]


def _null(text: str) -> tuple[bool, Any]:
    return text.lower() == "null", None


def _integer(text: str) -> tuple[bool, Any]:
    try:
        return True, int(text)
    except ValueError:  # also of more digits than Python reads
        return False, text


def _number(text: str) -> tuple[bool, Any]:
    found, value = _integer(text)
    if found:
        return True, value
    try:
        number = float(text)
    except ValueError:
        return False, text
    if not math.isfinite(number):
        return False, text
    return True, int(number) if number == int(number) else number


def _boolean(text: str) -> tuple[bool, Any]:
    word = text.lower().strip()
    return word in ("true", "1", "false", "0"), word in ("true", "1")


def _json(text: str) -> tuple[bool, Any]:
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return False, text
    return True, value


_READERS = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _json,
    "array": _json,
}
