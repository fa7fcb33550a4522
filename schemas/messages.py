"""Chat messages: what the HTTP schema accepts, message by message and part by part (01-render §4).

A message is checked against the forms of `schemas.message_forms`; the one that recognises most of
it wins, and unknown keys stay. Knows no template.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from schemas.message_forms import AnyMessage
from schemas.refusals import bad_request

Message: TypeAlias = dict[str, Any]
"""A message as a plain dict: `role`, and usually `content`, a string or a list of parts."""

_MAX_COMPLAINT = 1000
_MESSAGES: TypeAdapter[list[Any]] = TypeAdapter(
    Annotated[list[AnyMessage], Field(fail_fast=True)], config=ConfigDict(extra="allow")
)
"""Stops at the first bad message: each fails in as many ways as there are forms."""


def validated_messages(value: Any) -> list[Message]:
    """The messages as plain dicts, unknown keys kept. ValidationError where no form fits one.

    OpenAI's forms look at their parts only when something iterates them: bad parts pass here and
    are told by `check_parts`, or one by one by `each_part`.
    """
    messages = _validated(value)
    return [_plain(checked, given) for checked, given in zip(messages, value, strict=True)]


_SLICE = 64


def _validated(value: Any) -> list[Any]:
    """In slices: validation is one call into a library, which holds all other threads up."""
    if not isinstance(value, list) or len(value) <= _SLICE:
        return _MESSAGES.validate_python(value)
    messages: list[Any] = []
    for start in range(0, len(value), _SLICE):
        try:
            messages += _MESSAGES.validate_python(value[start : start + _SLICE])
        except ValidationError:
            # Once more with all before it, for the error to name the right one.
            messages = _MESSAGES.validate_python(value[: start + _SLICE])
    return messages


def _plain(checked: Any, given: Message) -> Message:
    message = dict(checked)
    if _is_lazy(message.get("content")):
        message["content"] = given["content"]
    return message


def materialised_calls(messages: list[Message]) -> list[Message]:
    """Every `tool_calls` a list. ValidationError where one of the calls is none."""
    lazy = [m for m in messages if _is_lazy(m.get("tool_calls"))]
    for message in lazy:
        message["tool_calls"] = list(message["tool_calls"])
    return messages


def check_parts(messages: list[Message]) -> None:
    """Refuse the first content part that the form chosen for its message does not know."""
    for message in messages:
        if not isinstance(message.get("content"), str | None):
            for _ in each_part(message):
                pass


def each_part(message: Message) -> Iterator[Any]:
    """The parts of a message's content as they were given, each checked when it is asked for.

    Refuses, where it is reached, a part that the form chosen for its message does not know.
    """
    content = message["content"]
    (checked,) = _MESSAGES.validate_python([message])
    lazy = checked.get("content")
    if not _is_lazy(lazy):
        yield from content
        return
    parts = iter(lazy)
    for part in content:
        _check_next(parts)
        yield part


def _check_next(parts: Iterator[Any]) -> None:
    try:
        next(parts, None)
    except ValidationError as error:
        raise bad_request(str(error)[:_MAX_COMPLAINT]) from None


def _is_lazy(value: object) -> bool:
    return not (value is None or isinstance(value, str | list | dict | int | float))


def normalised(messages: Any) -> Any:
    """`reasoning_content` under its present name, and tool calls as lists where they can be."""
    if not isinstance(messages, list):
        return messages
    return [_normalised(m) if isinstance(m, dict) else m for m in messages]


def _normalised(message: Message) -> Message:
    message = dict(message)
    reasoning = message.pop("reasoning_content", None)
    if reasoning is not None and message.get("reasoning") is None:
        message["reasoning"] = reasoning
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        if not isinstance(calls, Iterable):
            raise bad_request("`tool_calls` of a message must be a list.")
        message["tool_calls"] = list(calls)
    return message
