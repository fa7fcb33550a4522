"""Serving checks: what a valid body may still not ask of this deployment, as pure functions.

Each raises the ApiError that vLLM answers, the first violation in its order (03 §2 B, 04 §2).
Knows `ModelLimits`, no tokenizer and no engine.
"""

from pydantic import BaseModel

from schemas.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from schemas.generate import GenerateRequest
from schemas.limits import ModelLimits, check_model
from schemas.routes import Kind
from schemas.sampling import SamplingParams


def check_request(kind: Kind, request: BaseModel, limits: ModelLimits) -> None:
    """All checks of an endpoint that need nothing but its body and the limits."""
    check_model(getattr(request, "model", None), limits)


def check_sampling(params: SamplingParams, limits: ModelLimits) -> None:
    """Vocabulary and logprob bounds, as an engine checks them (03 §7.1)."""


def check_generate(request: GenerateRequest, limits: ModelLimits) -> None:
    """Counts, lengths and ids of a generate request (03 §2 B)."""


def check_derender(
    request: DerenderChatRequest
    | DerenderCompletionRequest
    | DerenderChatStreamRequest
    | DerenderCompletionStreamRequest,
    limits: ModelLimits,
    *,
    has_parser: bool = False,
) -> None:
    """Bounds before any decoding (04 §2)."""
