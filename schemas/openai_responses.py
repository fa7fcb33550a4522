"""The body of `/v1/responses/render` (01-render §2.3), not the chat that it becomes."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, model_validator

from schemas.body_checks import check_cache_salt, with_mm_payload
from schemas.errors import ApiError
from schemas.fields import (
    Body,
    CacheSalt,
    ExtraArgs,
    Int64,
    MMPayload,
    ReasoningEffort,
    Stop,
    TopLogprobs,
)
from schemas.ids import random_id
from schemas.refusals import bad_request
from schemas.response_items import check_item
from schemas.sampling import StructuredOutputs


def response_id() -> str:
    return f"resp_{random_id()}"


class Reasoning(Body):
    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseFormatText(Body):
    type: Literal["text"]


class ResponseFormatTextJSONSchemaConfig(Body):
    type: Literal["json_schema"]
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormatJSONObject(Body):
    type: Literal["json_object"]


class TextConfig(Body):
    format: (
        ResponseFormatText | ResponseFormatTextJSONSchemaConfig | ResponseFormatJSONObject | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None


class FunctionTool(Body):
    name: str
    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class HostedTool(Body):
    """A tool that the caller's platform runs; only its kind matters here."""

    type: Literal[
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "namespace",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    ]


_TOOLS: TypeAdapter[Any] = TypeAdapter(
    Annotated[list[FunctionTool | HostedTool], Field(fail_fast=True)]
)


def _check_choice(choice: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(choice.get("type"), str):
        raise ValueError("a named tool choice needs a type")
    return choice


NamedTool: TypeAlias = Annotated[dict[str, Any], AfterValidator(_check_choice)]


def _check_tool_list(tools: Any) -> Any:
    _TOOLS.validate_python(tools, from_attributes=True)
    return tools


InputItem: TypeAlias = Annotated[dict[str, Any], AfterValidator(check_item)]
Include: TypeAlias = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]


class ResponsesRequest(Body):
    background: bool | None = False
    include: list[Include] | None = None
    input: Annotated[
        str | Annotated[list[InputItem], Field(fail_fast=True)],
        BeforeValidator(lambda value: list(value) if isinstance(value, dict) else value),
    ]
    """Items as they came: messages, function calls and their outputs, reasoning.

    An object counts as the list of its keys: an empty one is an empty input.
    """
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    logit_bias: dict[str, float] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    """Refused: render keeps no state."""
    prompt: dict[str, Any] | None = None
    """Refused: prompt templates are stored elsewhere."""
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    """`none` where no tools are given."""
    tools: Annotated[list[dict[str, Any]], BeforeValidator(_check_tool_list)] = Field(
        default_factory=list
    )
    """Tools as they came."""
    top_logprobs: TopLogprobs = 0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    watermarking: bool | None = None
    request_id: str = Field(default_factory=response_id)
    session_id: str | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    priority: Int64 = 0
    mm_payload: MMPayload = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt | None = None
    structured_outputs: StructuredOutputs | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: Stop = Field(default_factory=list)
    stop_token_ids: list[int] | None = Field(default_factory=list)
    ignore_eos: bool = False
    vllm_xargs: ExtraArgs | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_raw(cls, body: Any) -> Any:
        return checked(body) if isinstance(body, dict) else body


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """The body ready for its fields; refuses, in vLLM's order, what no single field can tell."""
    body = _with_tool_choice(body)
    if body.get("prompt") is not None:
        raise bad_request("prompt template is not supported", "prompt")
    if body.get("background") and not body.get("store", True):
        raise bad_request("background can only be used when `store` is true", "background")
    check_cache_salt(body.get("cache_salt"))
    return with_mm_payload(body)


def _with_tool_choice(body: dict[str, Any]) -> dict[str, Any]:
    """Without tools only `none` is left to choose."""
    tools, choice = body.get("tools"), body.get("tool_choice", "auto")
    named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
    if tools:
        if named and isinstance(tools, list):
            return {**body, "tool_choice": _resolved(choice, tools)}
        return body
    if named:
        raise _no_such_tool()
    if choice == "required":
        raise bad_request(
            "Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice"
        )
    return {**body, "tool_choice": "none"} if choice in ("auto", "none") else body


def _resolved(choice: dict[str, Any], tools: list[Any]) -> dict[str, Any]:
    """A tool of a namespace may be named without it, where that is clear."""
    name = choice.get("name")
    if not name:
        raise _no_such_tool()
    names = [pair for tool in tools if isinstance(tool, dict) for pair in _tool_names(tool)]
    if any(name == full for full, _ in names):
        return choice
    found = [full for full, own in names if name == own]
    if not found:
        raise _no_such_tool()
    if len(found) > 1:
        raise bad_request(
            f"Tool choice '{name}' is in several namespaces: choose among {', '.join(found)}.",
            "tool_choice",
        )
    return {**choice, "name": found[0]}


def _tool_names(tool: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Full and own names of a tool, or of those in a namespace."""
    inner = tool.get("tools") if tool.get("type") == "namespace" else [tool]
    for each in inner if isinstance(inner, list) else []:
        own = each.get("name") if isinstance(each, dict) else None
        if isinstance(own, str):
            yield (own if each is tool else f"{tool.get('name')}__{own}"), own


def _no_such_tool() -> ApiError:
    return bad_request("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
