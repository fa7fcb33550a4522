"""Counters and small records that answers of several endpoints share. Knows no endpoint."""

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    multimodal_tokens: dict[str, int] | None = None
    """Placeholder tokens by modality, already counted in `prompt_tokens`."""


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class Usage(BaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class SpeculativeDecodingMetrics(BaseModel):
    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    """Entry j: verify steps that accepted exactly j draft tokens."""
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None


class RequestMetrics(BaseModel):
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: SpeculativeDecodingMetrics | None = None


class WeightVersionSpan(BaseModel):
    """Output tokens [start, end) were sampled by the weights named `version`."""

    version: str
    start: int
    end: int


class PromptLogprob(BaseModel):
    """One candidate at one prompt position, by token id in its map."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
