"""A Responses request as a chat: its items become messages, its flat tools function tools.

01-render §2.3. Renders nothing.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import bad_request
from schemas.sampling import StructuredOutputs
from workers.render.prompts import PromptRules
from workers.render.requests import ChatInput, reused_ids
from workers.render.templating import TemplateInput, Templates
from workers.text.tools import ToolWishes

Item = Mapping[str, Any]
Message = dict[str, Any]

# A custom tool takes free text: models are shown a function of one string.
_CUSTOM_INPUT = "input"
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {
        _CUSTOM_INPUT: {
            "type": "string",
            "description": "The freeform text payload for this tool.",
        }
    },
    "required": [_CUSTOM_INPUT],
    "additionalProperties": False,
}
_UNFINISHED = ("in_progress", "incomplete")


def responses_input(
    request: ResponsesRequest,
    templates: Templates,
    limits: ModelLimits,
    *,
    hides_unused_tools: bool,
) -> ChatInput:
    """Raise ApiError for items that no chat can hold."""
    if request.previous_response_id is not None:
        raise ApiError(
            "previous_response_id is not supported by the stateless render endpoint.",
            type="invalid_request_error",
            param="previous_response_id",
        )
    continues = _continues(request.input)
    functions = _functions(request.tools)
    hidden = hides_unused_tools and request.tool_choice == "none"
    tools = [{"type": "function", "function": f} for f in functions]
    kwargs = templates.effective_kwargs(
        request.chat_template_kwargs,
        {
            "add_generation_prompt": not continues,
            "continue_final_message": continues,
            "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        },
    )
    messages = _messages(request)
    return ChatInput(
        request=request,
        messages=messages,
        template=TemplateInput(
            kwargs,
            tools if request.tools and not hidden else None,
            continue_final_message=continues,
        ),
        rules=PromptRules(
            max_model_len=limits.max_model_len,
            max_output_tokens=request.max_output_tokens,
            output_param="max_output_tokens",
            add_special_tokens=True,
            truncate_to=None if request.truncation == "disabled" else -1,
            single_bos=True,
        ),
        max_tokens=request.max_output_tokens,
        tools=partial(_wishes, request, functions),
        mm_processor_kwargs=request.mm_processor_kwargs,
        media_io_kwargs=request.media_io_kwargs,
        reused_ids=reused_ids(request.kv_transfer_params, messages, limits),
    )


# --- items to messages


def _continues(given: str | Sequence[Item]) -> bool:
    """Whether the last item is an answer that stopped halfway."""
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    is_message = last.get("type", "message") in ("message", "reasoning")
    return is_message and last.get("status") in _UNFINISHED


def _messages(request: ResponsesRequest) -> list[Message]:
    messages: list[Message] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    for item in request.input:
        _add(messages, _message(item))
    return messages


def _add(messages: list[Message], message: Message) -> None:
    """One answer may be several items: thinking, text and calls join the turn that is open."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if last is None or not isinstance(message, _Piece):
        messages.append(dict(message))
        return
    value = message[message.key]
    if message.key == "tool_calls":
        last["tool_calls"] = [*(last.get("tool_calls") or ()), *value]
    elif last.get(message.key) is None:
        last[message.key] = value
    else:
        messages.append(dict(message))


class _Piece(dict[str, Any]):
    """A part of an assistant's turn."""

    def __init__(self, key: str, value: Any) -> None:
        super().__init__({"role": "assistant", key: value})
        self.key = key


def _message(item: Item) -> Message:
    kind = item.get("type")
    if kind == "function_call":
        return _call(item, _flat_name(item.get("namespace"), item["name"]), item["arguments"])
    if kind == "custom_tool_call":
        payload = json.dumps({_CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False)
        return _call(item, item["name"], payload)
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {
            "role": "tool",
            "content": item.get("output"),
            "tool_call_id": item.get("call_id"),
        }
    if kind == "reasoning":
        return _Piece("reasoning", _reasoning(item))
    if item.get("role") == "assistant" and (text := _first_text(item.get("content"))) is not None:
        return _Piece("content", text)
    if "role" in item:
        return dict(item)
    raise bad_request(f"Unsupported input item type: {kind}", "input")


def _call(item: Item, name: str, arguments: str) -> _Piece:
    call = {
        "id": item.get("call_id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return _Piece("tool_calls", [call])


def _reasoning(item: Item) -> str:
    if item.get("encrypted_content"):
        raise bad_request("Encrypted content is not supported.", "input")
    texts = item.get("content") or item.get("summary") or ()
    return str(texts[0]["text"]) if texts else ""


def _first_text(content: Any) -> str | None:
    if isinstance(content, list):
        content = content[0].get("text") if content else None
    return content if isinstance(content, str) else None


# --- tools


def _flat_name(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What models are shown; tools of other kinds are none of theirs."""
    functions: list[dict[str, Any]] = []
    for tool in tools:
        if tool.get("type") == "function":
            functions.append(_function(tool, tool["name"]))
        elif tool.get("type") == "custom":
            shown = {**tool, "parameters": _CUSTOM_PARAMETERS}
            functions.append(_function(shown, tool["name"]))
        elif tool.get("type") == "namespace":
            functions += [
                _function(inner, _flat_name(tool["name"], inner["name"]))
                for inner in tool.get("tools", ())
                if inner.get("type") == "function"
            ]
    return functions


def _function(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = {
        "name": name,
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
    }
    optional = {key: tool[key] for key in ("strict", "defer_loading") if tool.get(key) is not None}
    return function | optional


def _wishes(request: ResponsesRequest, functions: list[dict[str, Any]]) -> ToolWishes:
    choice = request.tool_choice
    forced = None if isinstance(choice, str) else choice.get("name")
    mode = choice if isinstance(choice, str) else choice.get("mode", "auto")
    return ToolWishes(
        functions=functions,
        choice=None if forced else mode,
        forced=forced,
        is_parallel=request.parallel_tool_calls is not False,
        structured_outputs=_structured_outputs(request),
        is_constrained=True,
        skip_special_tokens=request.skip_special_tokens,
    )


def _structured_outputs(request: ResponsesRequest) -> StructuredOutputs | None:
    wanted = request.text.format if request.text else None
    if wanted is None:
        return request.structured_outputs
    if request.structured_outputs is not None:
        raise bad_request(
            "Cannot specify both structured_outputs and text.format", "structured_outputs"
        )
    if wanted.type == "json_object":
        return StructuredOutputs(json_object=True)
    if wanted.type == "json_schema" and wanted.schema_ is not None:
        return StructuredOutputs(json=wanted.schema_)
    return None
