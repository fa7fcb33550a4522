"""The body of `/v1/messages/render` (01-render §2.4). Knows its shape, not what chat it becomes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from schemas.body_checks import with_mm_payload
from schemas.fields import CacheSalt, ExtraArgs, MMPayload, StopList

_CHANGES = ("tool_addition", "tool_removal")


class AnthropicTool(BaseModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    """`type` is `object` where it is absent."""
    strict: bool | None = None
    defer_loading: bool | None = None

    @field_validator("input_schema")
    @classmethod
    def _default_type(cls, schema: dict[str, Any]) -> dict[str, Any]:
        return schema if "type" in schema else {**schema, "type": "object"}


class ToolReference(BaseModel):
    type: Literal["tool_reference"]
    name: str


class ToolDefinition(BaseModel):
    type: Literal["tool_definition"]
    definition: AnthropicTool


ToolChange = Annotated[ToolReference | ToolDefinition, Field(discriminator="type")]


class ContentBlock(BaseModel):
    """One block; which fields matter depends on its type."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool: ToolChange | None = None

    @model_validator(mode="after")
    def _check_change(self) -> "ContentBlock":
        if self.type in _CHANGES and self.tool is None:
            raise ValueError(f"tool is required for {self.type} blocks")
        if self.type == "tool_removal" and not isinstance(self.tool, ToolReference):
            raise ValueError("tool_removal only accepts a tool_reference")
        return self


def _refuse_changes(content: str | list[ContentBlock] | None) -> None:
    for block in content if isinstance(content, list) else ():
        if block.type in _CHANGES:
            raise ValueError(f'{block.type} blocks are only allowed in messages with role "system"')


class AnthropicMessage(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]

    @model_validator(mode="after")
    def _check_changes(self) -> "AnthropicMessage":
        if self.role != "system":
            _refuse_changes(self.content)
        return self


class AnthropicToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> "AnthropicToolChoice":
        if self.type == "tool" and not self.name:
            raise ValueError("tool_choice.name is required when type is 'tool'")
        return self


class JsonOutputFormat(BaseModel):
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(BaseModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutputFormat | None = None


Display = Literal["summarized", "omitted", "updates"]


class ThinkingEnabled(BaseModel):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024)
    display: Display | None = None


class ThinkingDisabled(BaseModel):
    type: Literal["disabled"]


class ThinkingAdaptive(BaseModel):
    type: Literal["adaptive"]
    display: Display | None = None


Thinking = Annotated[
    ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive, Field(discriminator="type")
]


class MessagesRequest(BaseModel):
    model: str
    messages: list[AnthropicMessage]
    max_tokens: int
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    stop_sequences: StopList | None = None
    stream: bool | None = False
    system: str | list[ContentBlock] | None = None
    temperature: float | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: list[AnthropicTool] | None = None
    top_k: int | None = None
    top_p: float | None = None
    mm_payload: MMPayload = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt | None = None
    watermarking: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArgs | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str) -> str:
        if not model:
            raise ValueError("Model is required")
        return model

    @field_validator("max_tokens")
    @classmethod
    def _check_max_tokens(cls, count: int) -> int:
        if count <= 0:
            raise ValueError("max_tokens must be positive")
        return count

    @field_validator("system")
    @classmethod
    def _check_system(cls, system: Any) -> Any:
        _refuse_changes(system)
        return system

    @model_validator(mode="before")
    @classmethod
    def _resolve_alias(cls, body: Any) -> Any:
        return with_mm_payload(body) if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _check_thinking_budget(self) -> "MessagesRequest":
        if (self.kv_transfer_params or {}).get("do_remote_decode"):
            return self  # a prefill leg: the decode leg carries the caller's max_tokens
        thinking = self.thinking
        if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens >= self.max_tokens:
            raise ValueError("thinking.budget_tokens must be less than max_tokens")
        return self
