"""Sampling parameters of a rendered prompt: server defaults, the request, and how much may be said.

01-render §5.2-5.4. Decides; sends nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.settings import ModelSettings
from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.fields import AnyResponseFormat, ResponseFormat
from schemas.limits import ModelLimits
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import bad_request
from schemas.sampling import DELTA, FINAL_ONLY, SamplingParams, StructuredOutputs, token_bias

AnyRequest = ChatCompletionRequest | CompletionRequest | ResponsesRequest

_NEUTRAL: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
_FROM_GENERATION_CONFIG = (*_NEUTRAL, "max_new_tokens", "skip_special_tokens")
# Fields that mean the same in a request and in the parameters.
_COPIED = (
    "n", "watermarking", "seed", "stop", "ignore_eos", "min_tokens", "include_stop_str_in_output",
    "spaces_between_special_tokens", "stream_interval", "bad_words", "thinking_token_budget",
    "allowed_token_ids", "repetition_detection", "routed_experts_prompt_start",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """What the model's generation_config.json and the flags say where a request says nothing."""

    values: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """Of a request that names no limit."""
    override_max_tokens: int | None = None
    """No request gets more."""


def server_defaults(
    settings: ModelSettings, generation_config: Mapping[str, Any]
) -> ServerDefaults:
    own = {} if settings.generation_config == "vllm" else dict(generation_config)
    values = {
        key: value
        for key, value in (own | settings.override_generation_config).items()
        if key in _FROM_GENERATION_CONFIG and value is not None
    }
    max_tokens = values.pop("max_new_tokens", None)
    named = settings.generation_config not in ("auto", "vllm")
    override = max_tokens if named else settings.override_generation_config.get("max_new_tokens")
    return ServerDefaults(values, max_tokens, override)


def resolve_max_tokens(
    asked: int | None,
    *,
    prompt_length: int,
    truncated_to: int | None,
    limits: ModelLimits,
    defaults: ServerDefaults,
) -> int:
    """Raise ApiError where the prompt leaves no context at all."""
    context = limits.max_model_len
    if truncated_to is not None:
        prompt_length = min(prompt_length, context if truncated_to == -1 else truncated_to)
    if prompt_length > context:
        raise bad_request(
            f"Input length ({prompt_length}) exceeds model's maximum context length ({context})."
        )
    wanted = asked if asked is not None else defaults.max_tokens
    bounds = (context - prompt_length, wanted, defaults.override_max_tokens)
    return min(bound for bound in bounds if bound is not None)


def sampling_params(
    request: AnyRequest,
    max_tokens: int,
    defaults: ServerDefaults,
    limits: ModelLimits,
    *,
    structured_outputs: StructuredOutputs | None,
    skip_special_tokens: bool | None,
) -> SamplingParams:
    """The last two are what parsers may have changed of the request. Raise ApiError."""
    values: dict[str, Any] = {
        name: getattr(request, name) for name in _COPIED if hasattr(request, name)
    }
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        values[name] = defaults.values.get(name, neutral) if value is None else value
    if skip_special_tokens is None:
        skip_special_tokens = defaults.values.get("skip_special_tokens", True)
    values |= _logprobs(request)
    values |= {
        "n": 1 if values.get("n") is None else values["n"],
        "stop_token_ids": request.stop_token_ids,
        "skip_special_tokens": skip_special_tokens,
        "max_tokens": 1 if _only_echoes(request) else max_tokens,
        "output_kind": DELTA if request.stream else FINAL_ONLY,
        "skip_clone": True,
        "structured_outputs": structured_outputs,
        "logit_bias": token_bias(request.logit_bias),
        "extra_args": _extra_args(request),
    }
    return SamplingParams.model_validate(values, context={"limits": limits})


def _only_echoes(request: AnyRequest) -> bool:
    """One token must be sampled, it is not shown."""
    return isinstance(request, CompletionRequest) and bool(request.echo) and request.max_tokens == 0


def _logprobs(request: AnyRequest) -> dict[str, Any]:
    if isinstance(request, ResponsesRequest):
        wanted = "message.output_text.logprobs" in (request.include or ())
        return {"logprobs": request.top_logprobs if wanted else None}
    if isinstance(request, CompletionRequest):
        count = asked = request.logprobs
    else:
        count, asked = request.top_logprobs, request.top_logprobs if request.logprobs else None
    prompt = request.prompt_logprobs
    return {
        "logprobs": None if request.logprob_token_ids else asked,
        "prompt_logprobs": count if prompt is None and request.echo else prompt,
        "logprob_token_ids": request.logprob_token_ids or None,
    }


def _extra_args(request: AnyRequest) -> dict[str, Any] | None:
    """The Responses endpoint writes an empty object where the others write none (01 §2.3)."""
    extra = dict(request.vllm_xargs or {})
    return extra if extra or isinstance(request, ResponsesRequest) else None


def structured_outputs(
    given: StructuredOutputs | None, response_format: AnyResponseFormat | None
) -> StructuredOutputs | None:
    """The request's two ways to constrain the output, as one."""
    if response_format is None or response_format.type == "text":
        return given
    wanted: dict[str, Any]
    if not isinstance(response_format, ResponseFormat):
        wanted = {"structural_tag": json.dumps(response_format.model_dump(by_alias=True))}
    elif response_format.type == "json_object":
        wanted = {"json_object": True}
    else:
        schema = response_format.json_schema
        wanted = {"json": schema.json_schema if schema else None}
    base = {} if given is None else given.model_dump(by_alias=True)
    return StructuredOutputs.model_validate(base | wanted)
