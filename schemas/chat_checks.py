"""Checks on a chat body as decoded, before its fields are looked at (01-render §3.3).

Knows how tools, tool_choice, logprobs and messages must fit each other.
"""

from collections.abc import Iterable
from typing import Any

from schemas.body_checks import (
    check_cache_salt,
    check_counts,
    check_positive,
    check_prompt_logprobs,
    check_response_format,
    check_stream_options,
    check_structured_outputs,
    with_mm_payload,
)
from schemas.messages import normalised
from schemas.parts import has_media
from schemas.refusals import bad_request


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """The body ready for its fields; refuses, in vLLM's order, what no single field can tell."""
    if not isinstance(body.get("messages", []), Iterable):
        raise bad_request("`messages` must be a list of objects.")
    body = without_prompt_ids_beside_media(body)
    check_generation_prompt(body)
    body = check_tools(body)
    check_structured_outputs(body, None)
    _check_tools_beside_structure(body)
    _check_logprobs(body)
    check_stream_options(body)
    check_response_format(body)
    if "messages" in body:
        body = {**body, "messages": normalised(body["messages"])}
    check_cache_salt(body.get("cache_salt"))
    return with_mm_payload(body)


def without_prompt_ids_beside_media(body: dict[str, Any]) -> dict[str, Any]:
    """Forwarded prompt ids cannot carry media: where messages have some, the ids are dropped."""
    transfer = body.get("kv_transfer_params")
    if not isinstance(transfer, dict) or transfer.get("prompt_token_ids") is None:
        return body
    if not has_media(body.get("messages")):
        return body
    kept = {key: value for key, value in transfer.items() if key != "prompt_token_ids"}
    return {**body, "kv_transfer_params": kept}


def check_generation_prompt(body: dict[str, Any]) -> None:
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )


def check_tools(body: dict[str, Any]) -> dict[str, Any]:
    """Tools and tool_choice must fit each other; a missing choice beside tools becomes `auto`."""
    tools = body.get("tools")
    if tools == []:
        raise bad_request(
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    if "tool_choice" not in body:
        return {**body, "tool_choice": "auto"} if tools else body
    choice = body["tool_choice"]
    if choice is not None and choice != "none":
        _check_choice(choice, tools)
    return body


def _check_choice(choice: Any, tools: Any) -> None:
    if tools is None:
        raise bad_request("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        _check_named_choice(choice.get("function"), tools)
    elif choice not in ("auto", "required"):
        raise bad_request(
            f"Invalid value for `tool_choice`: {choice}! "
            'Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )


_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


def _check_named_choice(function: Any, tools: Any) -> None:
    if not isinstance(function, dict):
        raise bad_request(
            f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}",
            "tool_choice.function",
        )
    if "name" not in function:
        raise bad_request(
            f"Expected field `name` in `function` in `tool_choice`! {_USAGE}",
            "tool_choice.function.name",
        )
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise bad_request(
            f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}",
            "tool_choice.function.name",
        )
    if name not in _names_of(tools):
        raise bad_request(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "tool_choice",
        )


def _names_of(tools: Any) -> list[Any]:
    functions = (
        [tool.get("function") for tool in tools if isinstance(tool, dict)]
        if isinstance(tools, list)
        else []
    )
    return [function.get("name") for function in functions if isinstance(function, dict)]


def _check_tools_beside_structure(body: dict[str, Any]) -> None:
    wanted = body.get("structured_outputs")
    if not isinstance(wanted, dict):
        return
    constrained = any(wanted.get(kind) is not None for kind in ("json", "regex", "choice"))
    if constrained and body.get("tool_choice", "none") not in ("none", "auto", "required"):
        raise bad_request(
            "You can only either use constraints for structured outputs or tools, not both."
        )


def _check_logprobs(body: dict[str, Any]) -> None:
    if body.get("logprob_token_ids") and body.get("use_beam_search"):
        raise bad_request(
            "`logprob_token_ids` is not supported with beam search.", "logprob_token_ids"
        )
    if body.get("logprob_token_ids") and not body.get("logprobs"):
        raise bad_request(
            "when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids"
        )
    check_counts(body, ("prompt_logprobs", "top_logprobs"))
    check_prompt_logprobs(body)
    _check_top_logprobs(body)


def _check_top_logprobs(body: dict[str, Any]) -> None:
    top = body.get("top_logprobs")
    check_positive("top_logprobs", top)
    if top is not None and (top == -1 or top > 0) and not body.get("logprobs"):
        raise bad_request(
            "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )
