"""Bounds to what a decoded body holds, looked at before its fields are validated one by one.

Validating costs much more than counting, and cannot be interrupted. The numbers are those of
`schemas.limits`; what a model bounds is checked by `schemas.checks`.
"""

from collections.abc import Iterator
from typing import Any

from schemas.errors import ApiError
from schemas.limits import (
    MAX_CALLS,
    MAX_CHARACTERS,
    MAX_CHOICE_CHARACTERS,
    MAX_ENTRIES,
    MAX_INNER_CHARACTERS,
    MAX_INNER_VALUES,
    MAX_KEYS,
    MAX_PARAMETERS,
    MAX_PARTS,
)
from schemas.refusals import bad_request

_INNER = ("sampling_params", "structured_outputs", "chat_request", "completion_request")
"""Objects whose fields are bounded by their names, too, wherever they are."""
_CONVERSATIONS = ("messages", "input")
_HOLD_TEXT = {*MAX_INNER_CHARACTERS, "choice"}


def check_limits(body: dict[str, Any], *, is_light: bool = False) -> None:
    """Raise ApiError 400 naming the first parameter that holds too much.

    Of one that is light (`schemas.json_size`) only what strings hold is looked at.
    """
    if not is_light:
        _check_keys(body)
    for path, fields in _objects(body, ""):
        _require(path[:-1] or "body", len(fields), MAX_PARAMETERS, "parameters")
        for name, value in fields.items():
            if isinstance(value, str):
                _require(path + name, len(value), MAX_CHARACTERS.get(name), "characters")
            elif isinstance(value, list | dict) and (not is_light or name in _HOLD_TEXT):
                _check_container(path, name, value)


def _objects(body: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The body and the objects in it that have parameters of their own, with their paths."""
    yield path, body
    for name in _INNER:
        inner = body.get(name)
        if isinstance(inner, dict):
            yield from _objects(inner, f"{path}{name}.")


def _check_keys(body: dict[str, Any]) -> None:
    pending: list[tuple[str, object]] = list(body.items())
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            _require(name, len(value), MAX_KEYS, "keys in an object")
            value = list(value.values())
        if isinstance(value, list):
            pending += [(name, each) for each in value if isinstance(each, dict | list)]


def _check_container(path: str, name: str, value: list[Any] | dict[str, Any]) -> None:
    whole = path + name
    _require(whole, len(value), MAX_ENTRIES.get(name), "entries")
    if name in MAX_INNER_VALUES or name in MAX_INNER_CHARACTERS:
        values, characters = MAX_INNER_VALUES.get(name), MAX_INNER_CHARACTERS.get(name)
        _check_inner(whole, value, values, characters)
    if name == "choice":
        total = sum(len(each) for each in value if isinstance(each, str))
        _require(whole, total, MAX_CHOICE_CHARACTERS, "characters in all")
    if name in _CONVERSATIONS and isinstance(value, list):
        _check_conversation(whole, value)


def _check_inner(name: str, value: object, values: int | None, characters: int | None) -> None:
    """Stops where a limit is passed: no more than that is looked at."""
    num_values = num_characters = 0
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            num_characters += len(node)
        elif isinstance(node, dict):
            num_values += len(node)
            num_characters += sum(map(len, node))
            pending.extend(node.values())
        elif isinstance(node, list):
            num_values += len(node)
            pending.extend(node)
        _require(name, num_values, values, "values in all")
        _require(name, num_characters, characters, "characters in all")


def _check_conversation(name: str, messages: list[Any]) -> None:
    num_parts = num_calls = 0
    for message in messages:
        if not isinstance(message, dict):
            continue
        content, calls = message.get("content"), message.get("tool_calls")
        num_parts += len(content) if isinstance(content, list | dict) else 0
        num_calls += len(calls) if isinstance(calls, list | dict) else 0
    _require(name, num_parts, MAX_PARTS, "content parts in all")
    _require(name, num_calls, MAX_CALLS, "tool calls in all")


def _require(name: str, count: int, most: int | None, what: str) -> None:
    if most is not None and count > most:
        raise too_much(name, count, most, what)


def too_much(name: str, count: int, most: int, what: str) -> ApiError:
    return bad_request(f"`{name}` has {count} {what}; at most {most} are accepted.", name)
