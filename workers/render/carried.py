"""What of a request travels on with its prompt: fields repeated as they are, and the parse context.

01-render §7. Decides nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.fields import NamedToolChoice, Tool
from workers.render.sampling import AnyRequest


def carried_fields(request: AnyRequest) -> dict[str, Any]:
    stream = bool(request.stream)
    options = getattr(request, "stream_options", None)
    return {
        "return_token_ids": getattr(request, "return_token_ids", None),
        "stream": stream,
        "stream_options": options.model_dump() if stream and options else None,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": _without_prompt_ids(request) or None,
        "ec_transfer_params": request.ec_transfer_params or None,
    }


def _without_prompt_ids(request: AnyRequest) -> dict[str, Any]:
    """Ids that stood for the prompt have done their work in a chat."""
    given = request.kv_transfer_params or {}
    if isinstance(request, CompletionRequest):
        return given
    return {key: value for key, value in given.items() if key != "prompt_token_ids"}


def parse_context(
    request: AnyRequest,
    template_kwargs: Mapping[str, Any],
    functions: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """What derender needs of a chat request. `functions`: those of its tools, as parsers left
    them."""
    if not isinstance(request, ChatCompletionRequest):
        return None
    choice = request.tool_choice
    return {
        "tools": None if request.tools is None else _tools(request.tools, functions),
        "tool_choice": choice.model_dump() if isinstance(choice, NamedToolChoice) else choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "include_reasoning": request.include_reasoning,
        "chat_template_kwargs": template_kwargs,
        "history_tool_call_cnt": _count_tool_calls(request.messages),
    }


def _tools(tools: Sequence[Tool], functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**tool.model_dump(), "function": function}
        for tool, function in zip(tools, functions, strict=True)
    ]


def _count_tool_calls(messages: Iterable[Mapping[str, Any]]) -> int:
    """Calls that the history holds: generated call ids may count on from there."""
    return sum(len(m.get("tool_calls") or ()) for m in messages if m.get("role") == "assistant")
