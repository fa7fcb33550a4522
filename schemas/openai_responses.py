"""The body of `/v1/responses/render` (01-render §2.3), not the chat that it becomes."""

import uuid
from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.fields import (
    Body,
    CacheSalt,
    ExtraArgs,
    Int64,
    MMPayload,
    Stop,
    TopLogprobs,
    check_cache_salt,
    with_mm_payload,
)
from schemas.sampling import StructuredOutputs


def response_id() -> str:
    return f"resp_{uuid.uuid4().hex[:16]}"


class Reasoning(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(Body):
    """`text`, `json_object`, or `json_schema` with its schema beside the name."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextConfig(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(Body):
    background: bool | None = False
    include: list[str] | None = None
    input: str | list[dict[str, Any]]
    """Items as they came: messages, function calls and their outputs, reasoning."""
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
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
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
        if not isinstance(body, dict):
            return body
        check_cache_salt(body.get("cache_salt"))
        return with_mm_payload(body)
