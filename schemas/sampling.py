"""Sampling parameters: fields, defaults, normalisation, checks and the form they travel in.

The object of 03-generate §7 and 01-render §5.4. Knows no model: checks that need one are functions
of `ModelLimits` in `schemas.sampling_limits`.
"""

import math
from typing import Any, Literal

from pydantic import ConfigDict, Field, StrictInt, ValidationInfo, model_validator

from schemas.fields import (
    Body,
    RepetitionDetection,
    check_nesting,
    limits_of,
    thinking_budget,
)
from schemas.limits import ModelLimits
from schemas.refusals import bad_request

DELTA, FINAL_ONLY = 1, 2
"""`output_kind`: what a streamed and what a whole answer asks the engine for."""

GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 1e-2
_MAX_BIAS = 100.0
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputs(Body):
    """A constraint on the output: exactly one of the first five or `structural_tag`."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), populate_by_name=True)

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    @model_validator(mode="after")
    def _check_kinds(self) -> "StructuredOutputs":
        wire = self.to_wire()
        given = sum(wire[kind] is not None for kind in _KINDS)
        if given > 1:
            raise bad_request(
                "You can only use one kind of structured outputs constraint "
                f"but multiple are specified: {wire}"
            )
        if given < 1:
            raise bad_request(
                "You must use one kind of structured outputs constraint "
                f"but none are specified: {wire}"
            )
        check_nesting(self.json_)
        return self

    def to_wire(self) -> dict[str, Any]:
        """All keys, nulls included, and the two that only engines set."""
        return {**self.model_dump(by_alias=True), "_backend": None, "_backend_was_auto": False}


class SamplingParams(Body):
    """Valid and normalised once constructed; `model_fields_set` tells which keys were given.

    An absent `max_tokens` means the server's default to a generate server, not 16.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    """A list once constructed; see `stop_strings`."""
    stop_token_ids: list[int] | None = None
    """A list once constructed."""
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list[list[StrictInt]] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Literal[0, 1, 2] = 0
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    """Characters held back while a stop string may still complete; derived from `stop`."""
    structured_outputs: StructuredOutputs | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    """A list once constructed."""
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None

    @model_validator(mode="after")
    def _normalise_and_check(self, info: ValidationInfo) -> "SamplingParams":
        values = self.__dict__  # not setattr: model_fields_set must keep what the caller gave
        values.update(_normalised(values))
        _check(self, limits_of(info))
        if self.is_greedy:
            values.update(top_p=1.0, top_k=0, min_p=0.0)
            if self.n > 1:
                raise bad_request(f"n must be 1 when using greedy sampling, got {self.n}.")
        return self

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> list[str]:
        return list(self.stop or ())

    @property
    def num_logprobs(self) -> int | None:
        """Candidates to return per output token; None: no logprobs were asked for."""
        if self.logprobs is not None:
            return self.logprobs
        return len(self.logprob_token_ids) if self.logprob_token_ids else None

    def gave(self, name: str) -> bool:
        """Whether the caller set this key, possibly to null or the default."""
        return name in self.model_fields_set

    def to_wire(self) -> dict[str, Any]:
        """The object as render returns it: defaults left out by the rule of 01-render §5.4."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: _WIRE_FORMS.get(name, _as_is)(value)
            for name, value in values.items()
            if _is_emitted(name, value, greedy=self.is_greedy)
        }


_ALWAYS = frozenset(
    {"presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "stop"}
    | {"stop_token_ids", "output_kind", "skip_clone", "bad_words", "skip_reading_prefix_cache"}
)
_UNLESS_GREEDY = frozenset(("top_p", "min_p"))
_DEFAULTS: dict[str, Any] = {name: f.default for name, f in SamplingParams.model_fields.items()}


def _is_emitted(name: str, value: object, *, greedy: bool) -> bool:
    if name in _UNLESS_GREEDY:
        return not greedy
    return name in _ALWAYS or value != _DEFAULTS[name]


def _as_is(value: Any) -> Any:
    return value


_WIRE_FORMS: dict[str, Any] = {
    "structured_outputs": lambda value: value and value.to_wire(),
    "repetition_detection": lambda value: value and value.model_dump(),
    "logit_bias": lambda value: value and {str(k): v for k, v in value.items()},
}


def _normalised(values: dict[str, Any]) -> dict[str, Any]:
    """What the engine is given for what the caller wrote."""
    bias, temperature = values["logit_bias"], values["temperature"]
    stop = [values["stop"]] if isinstance(values["stop"], str) else list(values["stop"] or ())
    held_back = values["output_text_buffer_length"]
    if stop and not values["include_stop_str_in_output"]:
        held_back = max(map(len, stop)) - 1
    scores = values["prompt_logprobs"], values["prompt_logprob_token_ids"]
    return {
        "temperature": _LOWEST_TEMPERATURE
        if 0 < temperature < _LOWEST_TEMPERATURE
        else temperature,
        "seed": None if values["seed"] == -1 else values["seed"],
        "thinking_token_budget": thinking_budget(values["thinking_token_budget"]),
        "stop": stop,
        "output_text_buffer_length": held_back,
        "stop_token_ids": list(dict.fromkeys(values["stop_token_ids"] or ())),
        "bad_words": list(dict.fromkeys(values["bad_words"] or ())),
        "logit_bias": bias and {token: clamped_bias(value) for token, value in bias.items()},
        "skip_reading_prefix_cache": (
            any(score is not None for score in scores)
            if values["skip_reading_prefix_cache"] is None
            else values["skip_reading_prefix_cache"]
        ),
    }


def clamped_bias(value: float) -> float:
    return min(_MAX_BIAS, max(-_MAX_BIAS, value))


def token_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    """The `logit_bias` of an OpenAI body by token id; refuses keys that are no ids."""
    if bias is None:
        return None
    wrong = [key for key in bias if not _is_int(key)]
    if wrong:
        raise bad_request(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong!r}",
            "logit_bias",
            wrong,
        )
    return {int(key): clamped_bias(value) for key, value in bias.items()}


def _is_int(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _check(params: SamplingParams, limits: ModelLimits) -> None:
    """Ranges, in the order in which the first violation is the one reported."""
    _check_n(params.n, limits.max_n_sequences)
    _check_extra_args(params.extra_args)
    _check_penalties(params)
    _check_temperature(params.temperature)
    _check_nucleus(params)
    _check_lengths(params)
    _check_logprobs("logprobs", params.logprobs)
    _check_logprobs("prompt_logprobs", params.prompt_logprobs)
    _check_words(params)


def _check_n(n: int, most: int) -> None:
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    if n > most:
        raise bad_request(
            f"n must be at most {most}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable."
        )


def _check_extra_args(extra: object) -> None:
    """Integers beyond what MessagePack holds cannot reach an engine."""
    pending: list[Any] = [extra]
    while pending:
        value = pending.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise bad_request(
                "extra_args integers must be between -2**63 and 2**64 - 1.", "extra_args"
            )
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            pending += value


def _check_penalties(params: SamplingParams) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if not -2.0 <= value <= 2.0:
            raise bad_request(f"{name} must be in [-2, 2], got {value}.")
    repetition = params.repetition_penalty
    if not math.isfinite(repetition):
        raise bad_request(f"repetition_penalty must be a finite number, got {repetition}.")
    if repetition <= 0.0:
        raise bad_request(f"repetition_penalty must be greater than zero, got {repetition}.")


def _check_temperature(value: float) -> None:
    problem = None
    if not math.isfinite(value):
        problem = "must be a finite number"
    elif value < 0.0:
        problem = "must be non-negative"
    elif value > 2.0:
        problem = "must be in [0, 2]"
    if problem:
        raise bad_request(f"temperature {problem}, got {value}.", "temperature", value)


def _check_nucleus(params: SamplingParams) -> None:
    if not 0.0 < params.top_p <= 1.0:
        raise bad_request(f"top_p must be in (0, 1], got {params.top_p}.", "top_p", params.top_p)
    if params.top_k < -1:
        raise bad_request(f"top_k must be 0 (disable), or at least 1, got {params.top_k}.")
    if not 0.0 <= params.min_p <= 1.0:
        raise bad_request(f"min_p must be in [0, 1], got {params.min_p}.")


def _check_lengths(params: SamplingParams) -> None:
    most, least, interval = params.max_tokens, params.min_tokens, params.stream_interval
    if most is not None and most < 1:
        raise bad_request(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
    if least < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {least}.")
    if most is not None and least > most:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
        )
    if interval is not None and interval < 1:
        raise bad_request(
            f"stream_interval must be at least 1, got {interval}.", "stream_interval", interval
        )


def _check_logprobs(name: str, count: int | None) -> None:
    if count is not None and count < -1:
        raise bad_request(f"{name} must be non-negative or -1, got {count}.", name, count)


def _check_words(params: SamplingParams) -> None:
    if any(not text for text in params.stop_strings):
        raise bad_request("stop cannot contain an empty string.")
    if params.stop and not params.detokenize:
        raise bad_request(
            "stop strings are only supported when detokenize is True. "
            "Set detokenize=True to use stop."
        )
    if any(not word for word in params.bad_words or ()):
        raise bad_request(
            f"bad_words cannot contain an empty string. Got bad_words={params.bad_words}"
        )
