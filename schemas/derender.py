"""Bodies and answers of the derender endpoints, whole and chunk by chunk (04-derender §1).

Class names are vLLM's: they show in the `param` of schema errors. Knows no parser.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field, NonNegativeInt, field_validator, model_validator

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.fields import Body
from schemas.generate import GenerateChunk, GenerateResponse
from schemas.responses import ChatCompletionChunk, CompletionChunk

_MAX_WINDOW = 1024
"""Pieces of a decode window; real ones hold a handful."""


class StreamState(Body):
    """What the client carries from chunk to chunk; one per choice index."""

    prev_tokens: list[str] = Field(default_factory=list)
    """Decode window: the pieces from `prefix_offset` on."""
    prefix_offset: int = Field(default=0, ge=0)
    read_offset: int = Field(default=0, ge=0)
    role_sent: bool = False
    logprob_context_token_ids: list[int] = Field(default_factory=list, max_length=4)
    """Sampled ids before the chunk, to repair a character split between chunks."""
    logprob_text_offset: int = Field(default=0, ge=0)
    output_token_ids: list[int] = Field(default_factory=list)
    """All tokens so far, for parsers."""
    output_chunk_lens: list[Annotated[int, Field(gt=0)]] = Field(default_factory=list)
    """Lengths of the chunks that `output_token_ids` came in."""
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = Field(default_factory=list)
    """By call index; stable over the stream."""

    @field_validator("prev_tokens")
    @classmethod
    def _bound_window(cls, window: list[str]) -> list[str]:
        if len(window) > _MAX_WINDOW:
            raise ValueError(f"prev_tokens length ({len(window)}) exceeds maximum ({_MAX_WINDOW})")
        return window

    @model_validator(mode="after")
    def _check_chunk_lens(self) -> "StreamState":
        total, count = sum(self.output_chunk_lens), len(self.output_token_ids)
        if total != count:
            raise ValueError(
                "output_chunk_lens must sum to len(output_token_ids) "
                f"(got sum={total}, len(output_token_ids)={count})"
            )
        return self


class DerenderChatRequest(Body):
    stream: Literal[False] = False
    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: int | None = None
    """For the usage of the answer; the response's own is not used."""
    prompt_token_ids: list[NonNegativeInt] | None = None
    """Seeds detokenization; a suffix of the prompt is enough without a parser."""
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(Body):
    stream: Literal[False] = False
    model: str | None = None
    generate_responses: list[GenerateResponse]
    """One per prompt."""
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[NonNegativeInt] | None] | None = None
    completion_request: CompletionRequest | None = None

    @model_validator(mode="after")
    def _check_parallel(self) -> "DerenderCompletionRequest":
        expected = len(self.generate_responses)
        for name in ("prompt_tokens", "prompt_token_ids"):
            given = getattr(self, name)
            if given is not None and len(given) != expected:
                raise ValueError(
                    f"{name} length ({len(given)}) must equal "
                    f"generate_responses length ({expected})"
                )
        return self


class DerenderChatStreamRequest(Body):
    stream: Literal[True]
    model: str | None = None
    generate_chunk: GenerateChunk
    stream_state: StreamState | None = None
    """Of the answer to the previous chunk; null on the first."""
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    """The whole prompt where a parser is configured."""
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionStreamRequest(Body):
    stream: Literal[True]
    model: str | None = None
    generate_chunk: GenerateChunk
    stream_state: StreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    completion_request: CompletionRequest | None = None


class DerenderChatStreamResponse(BaseModel):
    chunk: ChatCompletionChunk
    stream_state: StreamState


class DerenderCompletionStreamResponse(BaseModel):
    chunk: CompletionChunk
    stream_state: StreamState


AnyDerenderChat: TypeAlias = DerenderChatRequest | DerenderChatStreamRequest
AnyDerenderCompletion: TypeAlias = DerenderCompletionRequest | DerenderCompletionStreamRequest
