"""The body and the answers of `/inference/v1/generate` (03-generate). Knows no engine."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    InstanceOf,
    JsonValue,
    NonNegativeInt,
    Tag,
    field_validator,
    model_validator,
)

from schemas.body_checks import check_cache_salt
from schemas.features import (
    FeatureItem,
    MultiModalFeatures,
    PlaceholderRange,
    check_hashes,
    check_inside,
    check_payloads,
)
from schemas.fields import Body, CacheSalt, Int64, NamedToolChoice, StreamOptions, TokenIds, Tool
from schemas.ids import random_id
from schemas.responses import ChatLogprobs, ChatMessage
from schemas.sampling import SamplingParams
from schemas.usage import PromptLogprob, RequestMetrics, Usage, WeightVersionSpan

__all__ = [
    "FeatureItem",
    "GenerateBody",
    "GenerateChoice",
    "GenerateRequest",
    "GenerateResponse",
    "MultiModalFeatures",
    "PlaceholderRange",
]

ID_PREFIX = "generate-tokens-"
"""Before the caller's id in answers and for aborts."""


RAW_MEDIA_TYPES = frozenset({"image_url", "audio_url", "video_url"})
"""Types of content parts that bring media."""


class ParseContext(BaseModel):
    """What a parser needs of the chat request; read only with `output_mode: derender`.

    Unknown keys of a newer renderer are kept, so that only that mode refuses them.
    """

    model_config = ConfigDict(extra="allow")

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    history_tool_call_cnt: int = Field(default=0, ge=0)
    """Tool calls already in the conversation, for parsers that number their ids."""


class ReasoningParserKwargs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The effective kwargs the prompt was rendered with."""


def _check_ids(ids: list[int] | None) -> list[int] | None:
    if ids is not None and any(token < 0 for token in ids):
        raise ValueError("token_ids must not contain negative values")
    return ids


def _none_for_empty_list(params: object) -> object:
    return None if params == [] else params


class GenerateRequest(Body):
    """What render answers with and what travels on to an engine, payloads beside it or not.

    Fields in the order of render's answer. What a caller posts is a `GenerateBody`.
    """

    request_id: str = Field(default_factory=random_id)
    token_ids: TokenIds = Field(min_length=1)
    """The final prompt, placeholders expanded."""
    token_offsets: list[tuple[int, int]] | None = None
    """Character offsets of the tokens; told to callers, ignored on the way in."""
    features: MultiModalFeatures | None = None
    content_parts: list[dict[str, Any]] | None = None
    """Raw media instead of features."""
    sampling_params: InstanceOf[SamplingParams] | SamplingParams
    model: str | None = None
    reasoning_ended: bool | None = None
    """True: structured output starts at the first token; null: the prompt tells."""
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    parse_context: ParseContext | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt | None = None
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: Annotated[dict[str, Any] | None, BeforeValidator(_none_for_empty_list)] = (
        None
    )
    """Either form of `schemas.ec`; opaque beyond that. An empty one counts as absent."""

    @field_validator("token_ids")
    @classmethod
    def _check_token_ids(cls, ids: list[int]) -> list[int]:
        _check_ids(ids)
        return ids

    @model_validator(mode="before")
    @classmethod
    def _check_raw(cls, body: Any) -> Any:
        if isinstance(body, dict):
            check_cache_salt(body.get("cache_salt"))
        return body

    @model_validator(mode="after")
    def _check_together(self) -> "GenerateRequest":
        if self.content_parts and self.features:
            raise ValueError("content_parts and features are mutually exclusive")
        self._check_payloads()
        _check_output_mode(self)
        if self.features is not None:
            check_inside(self.features, len(self.token_ids))
        return self

    def _check_payloads(self) -> None:
        """Inside the fleet payloads travel apart from the request."""

    def raw_media(self) -> list[dict[str, Any]]:
        """The content parts that count; those of unknown types do not (03 §4.4)."""
        return [part for part in self.content_parts or () if part.get("type") in RAW_MEDIA_TYPES]

    def to_wire(self) -> dict[str, Any]:
        """All keys, nulls kept, as render answers."""
        return {**self.model_dump(), "sampling_params": self.sampling_params.to_wire()}


class GenerateBody(GenerateRequest):
    """A request as a caller posts it: each item brings what its embedding comes from."""

    def _check_payloads(self) -> None:
        if self.features is not None:
            check_hashes(self.features)
            check_payloads(self.features, self.ec_transfer_params)


def _check_output_mode(request: GenerateRequest) -> None:
    mode = request.output_mode
    if mode != "tokens" and not request.sampling_params.detokenize:
        raise ValueError(f"output_mode={mode!r} requires sampling_params.detokenize to be true")
    unknown = sorted((request.parse_context and request.parse_context.model_extra) or ())
    if unknown and mode == "derender":
        raise ValueError(
            f"Unknown parse_context fields {unknown}; the render server is newer than "
            "this generate server"
        )


# Answers. Numbers of tokens stand for themselves: strings are derender's business.


class GenerateLogprob(BaseModel):
    token_id: int
    logprob: float
    rank: int | None = None


class GenerateLogprobEntry(GenerateLogprob):
    """The sampled token at one position, and its candidates: sampled first, then by rank."""

    top_logprobs: list[GenerateLogprob] = Field(default_factory=list)


class GenerateLogprobs(BaseModel):
    content: list[GenerateLogprobEntry] | None = None
    """One entry per output token."""


class _Choice(BaseModel):
    index: int
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    """Stop string or token id; null on EOS, length and abort."""
    token_ids: TokenIds | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[WeightVersionSpan] | None = None

    @field_validator("token_ids")
    @classmethod
    def _check_token_ids(cls, ids: list[int] | None) -> list[int] | None:
        return _check_ids(ids)


class GenerateChoice(_Choice):
    logprobs: GenerateLogprobs | None = None


class GenerateTextChoice(_Choice):
    text: str
    logprobs: ChatLogprobs | None = None


class GenerateDerenderChoice(_Choice):
    message: ChatMessage
    logprobs: ChatLogprobs | None = None


class _Response(BaseModel):
    request_id: str = Field(default_factory=random_id)
    model: str | None = None
    created: int | None = None
    usage: Usage | None = None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: RequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class GenerateResponse(_Response):
    """The answer in output mode `tokens`, the one that derender takes."""

    output_mode: Literal["tokens"] = "tokens"
    choices: list[GenerateChoice]


class GenerateTextResponse(_Response):
    output_mode: Literal["text"] = "text"
    choices: list[GenerateTextChoice]


class GenerateDerenderResponse(_Response):
    output_mode: Literal["derender"] = "derender"
    choices: list[GenerateDerenderChoice]


GenerateUsage = Usage


class _StreamChoice(BaseModel):
    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: TokenIds | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[WeightVersionSpan] | None = None
    """On the final chunk only, for the whole output."""


class GenerateStreamChoice(_StreamChoice):
    logprobs: GenerateLogprobs | None = None


class GenerateTextStreamChoice(_StreamChoice):
    text: str
    logprobs: ChatLogprobs | None = None


class _Chunk(BaseModel):
    request_id: str = Field(default_factory=random_id)
    usage: Usage | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: RequestMetrics | None = None


class GenerateChunk(_Chunk):
    output_mode: Literal["tokens"] = "tokens"
    choices: list[GenerateStreamChoice]


class GenerateTextChunk(_Chunk):
    output_mode: Literal["text"] = "text"
    choices: list[GenerateTextStreamChoice]


def _mode_of(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("output_mode", "tokens")
    return getattr(value, "output_mode", "tokens")


AnyGenerateResponse: TypeAlias = Annotated[
    Annotated[GenerateResponse, Tag("tokens")]
    | Annotated[GenerateTextResponse, Tag("text")]
    | Annotated[GenerateDerenderResponse, Tag("derender")],
    Discriminator(_mode_of),
]
AnyGenerateChunk: TypeAlias = Annotated[
    Annotated[GenerateChunk, Tag("tokens")] | Annotated[GenerateTextChunk, Tag("text")],
    Discriminator(_mode_of),
]
"""A missing `output_mode` means `tokens`."""
