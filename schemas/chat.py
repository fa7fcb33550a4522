"""The body of `/v1/chat/completions` and its `/render` form.

Every field that influences rendering, sampling or derendering (01-render §3.1). Knows no template
and no tokenizer.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PlainValidator, model_validator

from schemas.chat_checks import checked
from schemas.fields import (
    AnyResponseFormat,
    Body,
    CacheSalt,
    ExtraArgs,
    Int64,
    MMPayload,
    ReasoningEffort,
    RepetitionDetection,
    Stop,
    StreamOptions,
    ThinkingBudget,
    Tool,
    ToolChoice,
    TopLogprobs,
    Truncation,
)
from schemas.ids import random_id
from schemas.messages import Message, materialised_calls, validated_messages
from schemas.sampling import StructuredOutputs

Messages: TypeAlias = Annotated[list[Message], PlainValidator(validated_messages)]


class ChatCompletionRequest(Body):
    messages: Messages
    """Plain dicts in the shape a template sees them: see `schemas.messages`."""
    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: TopLogprobs = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """Wins over `max_tokens`."""
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: AnyResponseFormat | None = None
    seed: Int64 | None = None
    stop: Stop = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice = "none"
    """`auto` where tools are given and this is absent."""
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: ThinkingBudget = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    user: str | None = None
    use_beam_search: bool = False
    """Refused by every endpoint of ours."""
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool | None = None
    """Null: the server's default."""
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Truncation | None = None
    """Tokens of the prompt to keep; -1: as many as leave room for the output."""
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    request_id: str = Field(default_factory=random_id)
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: int = Field(default=0, ge=0)
    return_token_offsets: bool | None = False
    return_prompt_text: bool | None = None
    mm_payload: MMPayload = "tensors"
    """`none`: render answers with hashes and placeholders only."""
    return_mm_kwargs: bool | None = None
    """Deprecated: false means `mm_payload: none`."""
    cache_salt: CacheSalt | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArgs | None = None
    repetition_detection: RepetitionDetection | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_raw(cls, body: Any) -> Any:
        return checked(body) if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _materialise_calls(self) -> "ChatCompletionRequest":
        materialised_calls(self.messages)
        return self
