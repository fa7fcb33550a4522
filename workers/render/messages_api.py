"""An Anthropic Messages request as the chat request that means the same.

01-render §2.4. Renders nothing.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.anthropic import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicToolChoice,
    ContentBlock,
    MessagesRequest,
    ToolDefinition,
)
from schemas.chat import ChatCompletionRequest
from schemas.fields import FunctionDefinition, NamedFunction, NamedToolChoice, Tool, ToolChoice
from schemas.refusals import bad_request

Message = dict[str, Any]

_BILLING_HEADER = "x-anthropic-billing-header"
_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_COPIED = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "watermarking", "cache_salt",
    "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "chat_template_kwargs", "mm_payload",
)  # fmt: skip


def chat_request(
    request: MessagesRequest, *, system_first: bool, disabled_effort: str
) -> ChatCompletionRequest:
    """`system_first`: the template takes system messages at the front only.

    `disabled_effort`: the reasoning effort that means no thinking. Raise ApiError.
    """
    body: dict[str, Any] = {
        name: value for name in _COPIED if (value := getattr(request, name)) is not None
    }
    body |= {
        "messages": _messages(request, system_first),
        "max_completion_tokens": request.max_tokens,
        "stop": request.stop_sequences,
    }
    body |= _stream(request) | _output(request) | _thinking(request, disabled_effort)
    chat = ChatCompletionRequest.model_validate(body)
    # Set behind the schema's back: here a choice needs no tools, and no choice is none at all.
    tools = _tools_in_effect(request)
    chat.tools = None if tools is None else [_tool(tool) for tool in tools]
    chat.tool_choice = _tool_choice(request.tool_choice, has_tools=tools is not None)
    if request.tool_choice is not None:
        chat.parallel_tool_calls = not request.tool_choice.disable_parallel_tool_use
    return chat


def _stream(request: MessagesRequest) -> dict[str, Any]:
    if not request.stream:
        return {}
    options = {"include_usage": True, "continuous_usage_stats": True}
    return {"stream": True, "stream_options": options}


def _output(request: MessagesRequest) -> dict[str, Any]:
    config = request.output_config
    result: dict[str, Any] = {}
    if config and config.format and config.format.json_schema:
        schema = {"name": config.format.type, "schema": config.format.json_schema}
        result["response_format"] = {"type": config.format.type, "json_schema": schema}
    if config and config.effort is not None:
        result["reasoning_effort"] = config.effort
    return result


def _thinking(request: MessagesRequest, disabled_effort: str) -> dict[str, Any]:
    thinking = request.thinking
    if thinking is None or thinking.type == "adaptive":
        return {}
    if thinking.type == "disabled":
        return {"reasoning_effort": disabled_effort}
    return {"thinking_token_budget": thinking.budget_tokens}


# --- messages


def _messages(request: MessagesRequest, system_first: bool) -> list[Message]:
    # A header in front of a plain string is left to the chat, which drops only its line.
    plain = request.system if isinstance(request.system, str) else None
    system = [plain] if plain else _system_texts(request.system)
    if system_first:
        for message in request.messages:
            if message.role == "system":
                system += _system_texts(message.content)
    messages: list[Message] = []
    if system:
        messages.append({"role": "system", "content": "".join(system)})
    for message in request.messages:
        if message.role != "system":
            messages += _turn(message)
        elif not system_first and (texts := _system_texts(message.content)):
            messages.append({"role": "system", "content": "".join(texts)})
    return messages


def _system_texts(content: str | Sequence[ContentBlock] | None) -> list[str]:
    """Without the header that some clients put in: it changes with every request."""
    if isinstance(content, str):
        texts: Iterable[str | None] = [content]
    else:
        texts = [block.text for block in content or () if block.type == "text"]
    return [text for text in texts if text and not text.startswith(_BILLING_HEADER)]


def _turn(message: AnthropicMessage) -> list[Message]:
    """Tool results come as messages of their own, in front of the rest of their turn."""
    turn: Message = {"role": message.role}
    if isinstance(message.content, str):
        return [turn | {"content": message.content}]
    results: list[Message] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in message.content:
        if block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(_call(block))
        elif block.type == "tool_result" and message.role == "user":
            results += _results(block)
        else:
            parts += _parts(block)
    if thoughts:
        turn["reasoning"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    if parts:
        is_text = len(parts) == 1 and parts[0]["type"] == "text"
        turn["content"] = parts[0]["text"] if is_text else parts
    is_empty = message.role == "user" and not parts
    return results if is_empty else [*results, turn]


def _parts(block: ContentBlock) -> list[dict[str, Any]]:
    if block.type == "text" and block.text:
        return [{"type": "text", "text": block.text}]
    if block.type == "image" and block.source:
        return [_image(block.source)]
    if block.type == "tool_result":
        text = str(block.content) if block.content else ""
        return [{"type": "text", "text": f"Tool result: {text}"}]
    return []


def _image(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": _image_url(source)}}


def _image_url(source: Mapping[str, Any]) -> str:
    if source.get("type") == "url":
        return str(source.get("url", ""))
    media_type = source.get("media_type", "image/jpeg")
    return f"data:{media_type};base64,{source.get('data', '')}"


def _call(block: ContentBlock) -> dict[str, Any]:
    return {
        "id": block.id or f"call_{int(time.time())}",
        "type": "function",
        "function": {"name": block.name or "", "arguments": json.dumps(block.input or {})},
    }


def _results(block: ContentBlock) -> list[Message]:
    """Pictures of a result go to a user message: tool messages hold text."""
    entries = block.content if isinstance(block.content, list) else []
    texts = [entry.get("text", "") for entry in entries if entry.get("type") == "text"]
    text = block.content if isinstance(block.content, str) else "\n".join(texts)
    images = [
        _image(source)
        for entry in entries
        if entry.get("type") == "image" and _image_url(source := entry.get("source", {}))
    ]
    references = [
        {"type": "tool_reference", "name": name}
        for entry in entries
        if entry.get("type") == "tool_reference"
        and (name := entry.get("tool_name") or entry.get("name"))
    ]
    tool: Message = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    messages = [tool | {"content": text}]
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append(tool | {"content": references})
    return messages


# --- tools


def _tool_choice(choice: AnthropicToolChoice | None, *, has_tools: bool) -> ToolChoice:
    if choice is None:
        return "auto" if has_tools else None
    if choice.type == "tool":
        return NamedToolChoice(function=NamedFunction(name=choice.name or ""))
    return _CHOICES[choice.type]


def _tool(tool: AnthropicTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
        defer_loading=tool.defer_loading,
    )
    return Tool(function=function)


def _tools_in_effect(request: MessagesRequest) -> list[AnthropicTool] | None:
    """The tools at the end of the conversation: system turns may add and remove some."""
    changes = [
        block
        for message in request.messages
        if not isinstance(message.content, str)
        for block in message.content
        if block.type in ("tool_addition", "tool_removal")
    ]
    if not changes:
        return request.tools
    tools = {tool.name: tool for tool in request.tools or ()}
    removed: set[str] = set()
    for block in changes:
        change = block.tool
        if isinstance(change, ToolDefinition):
            tools[change.definition.name] = change.definition
            removed.discard(change.definition.name)
            continue
        name = change.name if change else ""
        if name not in tools:
            raise bad_request(
                f"{block.type} references tool {name!r}, which is not declared in tools"
            )
        if block.type == "tool_removal":
            removed.add(name)
        else:
            tools[name] = tools[name].model_copy(update={"defer_loading": None})
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]
