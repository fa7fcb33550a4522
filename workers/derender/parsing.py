"""Where output parsers join in: what a request says to them, and what becomes of what they say.

Without them the text of an output is the content of its message.
"""

import hashlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.chat import ChatCompletionRequest
from schemas.fields import NamedToolChoice
from schemas.refusals import not_implemented
from schemas.responses import ChatMessage, FunctionCall, ToolCall
from workers.derender.model import TextModel
from workers.text.parsers.base import Call
from workers.text.parsers.message import Message, MessageParsers, MessageReader, ParseOptions

_LETTERS = string.ascii_letters + string.digits


def parse_options(
    request: ChatCompletionRequest, template_defaults: Mapping[str, Any]
) -> ParseOptions:
    choice = request.tool_choice
    forced = choice.function.name if isinstance(choice, NamedToolChoice) else None
    return ParseOptions(
        properties={
            tool.function.name: _properties(tool.function.parameters)
            for tool in request.tools or ()
        },
        choice=None if isinstance(choice, NamedToolChoice) else choice,
        forced=forced,
        is_parallel=request.parallel_tool_calls is not False,
        shows_reasoning=request.include_reasoning,
        template_kwargs=_template_kwargs(request, template_defaults),
    )


def _properties(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    given = (parameters or {}).get("properties")
    return given if isinstance(given, Mapping) else {}


def _template_kwargs(
    request: ChatCompletionRequest, defaults: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Of those that a template gets the ones that switch thinking; render has the others."""
    own = request.chat_template_kwargs or {}
    effort = request.reasoning_effort
    asked = {} if effort is None else {"enable_thinking": effort != "none"}
    return {**defaults, **asked, **{key: value for key, value in own.items() if value is not None}}


def message_reader(request: ChatCompletionRequest | None, model: TextModel) -> MessageReader | None:
    """None where no parser is set up. ApiError 501 for a parser that only render knows."""
    if request is None or not model.parsers.is_any:
        return None
    options = parse_options(request, model.template_kwargs)
    unread = model.parsers.unread(options)
    if unread is not None:
        raise not_implemented(f"Outputs for parser {unread} cannot be read yet.")
    return model.parsers.reader(options)


def hides_metadata(request: ChatCompletionRequest | None, model: TextModel) -> bool:
    """Log-probabilities and token ids would show the reasoning that a request does not want."""
    return model.parsers.is_any and request is not None and not request.include_reasoning


def chat_finish_reason(
    reason: str | None, request: ChatCompletionRequest | None, *, has_called: bool
) -> str:
    """An output cut by length stays so, and OpenAI reports `stop` for a named function."""
    reason = reason or "stop"
    is_named = request is not None and isinstance(request.tool_choice, NamedToolChoice)
    return "tool_calls" if has_called and reason == "stop" and not is_named else reason


def call_id(request_id: str, choice: int, index: int, *, is_short: bool = False) -> str:
    """The id of a call: the same wherever and however often the output is read.

    `is_short`: nine letters and digits, which Mistral's templates insist on.
    """
    digest = hashlib.blake2b(f"{request_id}/{choice}/{index}".encode(errors="replace"))
    if is_short:
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest.digest()[:9])
    return f"chatcmpl-tool-{digest.hexdigest()[:16]}"


def chat_message(
    message: Message, request_id: str, choice: int, parsers: MessageParsers, role: str
) -> ChatMessage:
    return ChatMessage(
        role=role,
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=_tool_calls(message.calls, request_id, choice, parsers),
    )


def _tool_calls(
    calls: Sequence[Call], request_id: str, choice: int, parsers: MessageParsers
) -> list[ToolCall]:
    return [
        ToolCall(
            id=call_id(request_id, choice, index, is_short=parsers.has_short_ids),
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for index, call in enumerate(calls)
    ]
