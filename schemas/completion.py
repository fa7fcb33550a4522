"""The body of `/v1/completions` and its `/render` form (01-render §3.2). Knows no tokenizer."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, model_validator

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
from schemas.fields import (
    AnyResponseFormat,
    Body,
    CacheSalt,
    ExtraArgs,
    Int64,
    MMPayload,
    RepetitionDetection,
    Stop,
    StreamOptions,
    ThinkingBudget,
    TokenId,
    Truncation,
    limits_of,
)
from schemas.ids import random_id
from schemas.refusals import bad_request
from schemas.sampling import StructuredOutputs

DEFAULT_MAX_TOKENS = 16


Ids: TypeAlias = Annotated[list[TokenId], Field(fail_fast=True)]
Texts: TypeAlias = Annotated[list[str], Field(fail_fast=True)]


class CompletionRequest(Body):
    model: str | None = None
    prompt: Ids | Annotated[list[Ids], Field(fail_fast=True)] | str | Texts | None = None
    echo: bool | None = False
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    """Null means the default, too."""
    n: int = 1
    presence_penalty: float | None = None
    seed: Int64 | None = None
    stop: Stop = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
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
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] | None = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None
    """Refused where a chat's are, though a completion has no media."""
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    prompt_embeds: bytes | list[bytes] | None = None
    add_special_tokens: bool = True
    response_format: AnyResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    request_id: str = Field(default_factory=random_id)
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: int = Field(default=0, ge=0)
    return_token_offsets: bool | None = False
    mm_payload: MMPayload = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArgs | None = None
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: ThinkingBudget = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_raw(cls, body: Any, info: ValidationInfo) -> Any:
        if not isinstance(body, dict):
            return body
        return checked(body, limits_of(info).max_completion_prompts)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one; the list forms of OpenAI resolved."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            return []
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


def checked(body: dict[str, Any], max_prompts: int) -> dict[str, Any]:
    """The body ready for its fields; refuses, in vLLM's order, what no single field can tell."""
    _check_prompt_count(body, max_prompts)
    _check_prompt_given(body)
    check_stream_options(body)
    _check_logprobs(body)
    check_structured_outputs(body, "structured_outputs")
    check_response_format(body)
    if body.get("max_tokens") is None:
        body = {**body, "max_tokens": DEFAULT_MAX_TOKENS}
    check_cache_salt(body.get("cache_salt"))
    return with_mm_payload(body)


def _check_prompt_count(body: dict[str, Any], most: int) -> None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt):
        _check_count("prompt", prompt, most)
    embeds = body.get("prompt_embeds")
    if isinstance(embeds, list):
        _check_count("prompt_embeds", embeds, most)


def _check_count(name: str, given: list[Any], most: int) -> None:
    if len(given) > most:
        raise bad_request(
            f"{name} list length {len(given)} exceeds the maximum allowed count of {most}. To "
            "increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
            name,
        )


def _check_prompt_given(body: dict[str, Any]) -> None:
    if body.get("prompt") in (None, "") and body.get("prompt_embeds") in (None, []):
        raise bad_request(
            "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
        )


def _check_logprobs(body: dict[str, Any]) -> None:
    ids, count = body.get("logprob_token_ids"), body.get("logprobs")
    problem = None
    if ids and body.get("use_beam_search"):
        problem = "`logprob_token_ids` is not supported with beam search."
    elif body.get("use_beam_search") and body.get("echo") and count is not None:
        raise bad_request(
            "`echo` with `logprobs` is not supported with beam search "
            "because beam search does not compute prompt logprobs.",
            "echo",
        )
    elif ids and body.get("echo") and body.get("max_tokens") == 0:
        problem = (
            "`logprob_token_ids` is not supported when `echo=True` and "
            "`max_tokens=0` because no output tokens are generated."
        )
    elif ids and count is None:
        problem = "when using `logprob_token_ids`, `logprobs` must be set."
    if problem:
        raise bad_request(problem, "logprob_token_ids")
    check_counts(body, ("prompt_logprobs", "logprobs"))
    check_prompt_logprobs(body)
    check_positive("logprobs", body.get("logprobs"))
