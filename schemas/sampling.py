"""Sampling parameters: fields, defaults, normalisation and the form they travel in.

The object of 03-generate §7 and 01-render §5.4. Knows no model: `schemas.sampling_ranges` checks
the values by themselves, `schemas.sampling_limits` against a model.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field, StrictInt, ValidationInfo, model_validator

from schemas.body_checks import check_nesting
from schemas.fields import (
    Body,
    RepetitionDetection,
    limits_of,
    thinking_budget,
)
from schemas.refusals import bad_request
from schemas.sampling_ranges import check_ranges

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
        check_ranges(self, limits_of(info))
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

    def gave(self, name: str) -> bool:
        """Whether the caller set this key, possibly to null or the default."""
        return name in self.model_fields_set

    def to_wire(self) -> dict[str, Any]:
        """The object as render returns it: defaults left out by the rule of 01-render §5.4."""
        values = self.__dict__
        shown = _ALWAYS if self.is_greedy else _ALWAYS | _UNLESS_GREEDY
        return {
            name: _WIRE_FORMS[name](values[name]) if name in _WIRE_FORMS else values[name]
            for name, default in _DEFAULTS.items()
            if name in shown or (values[name] != default and name not in _UNLESS_GREEDY)
        }


_ALWAYS = frozenset(
    {"presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "stop"}
    | {"stop_token_ids", "output_kind", "skip_clone", "bad_words", "skip_reading_prefix_cache"}
)
_UNLESS_GREEDY = frozenset(("top_p", "min_p"))
_DEFAULTS: dict[str, Any] = {name: f.default for name, f in SamplingParams.model_fields.items()}


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
