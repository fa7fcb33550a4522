"""Sampling parameters as the engine uses them, made from their wire form.

The wire form was validated before (03 §7.1); here absent keys become defaults. Knows no tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01


@dataclass(frozen=True, slots=True)
class Repetition:
    """Ends a choice whose last tokens repeat a pattern."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """One request's parameters (03 §7.1); greedy when the temperature is 0."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    repetition: Repetition | None = None
    structured: Mapping[str, Any] | None = None
    """`structured_outputs` of the wire: what the output must look like."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    @classmethod
    def of_wire(cls, wire: Mapping[str, Any]) -> Self:
        given = {key: value for key, value in wire.items() if value is not None}
        plain = {key: given[key] for key in _PLAIN if key in given}
        return cls(
            **plain,
            **_shape(float(given.get("temperature", 1.0)), given),
            seed=None if given.get("seed") == -1 else given.get("seed"),
            stop=_strings(given.get("stop")),
            stop_token_ids=tuple(given.get("stop_token_ids", ())),
            logprob_token_ids=_ids(given.get("logprob_token_ids")),
            logit_bias=_bias(given.get("logit_bias", {})),
            allowed_token_ids=_ids(given.get("allowed_token_ids")),
            bad_words=tuple(given.get("bad_words", ())),
            repetition=_repetition(given.get("repetition_detection")),
            structured=given.get("structured_outputs"),
        )


_PLAIN = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def _shape(temperature: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """Temperature and the truncations, which greedy decoding ignores."""
    if temperature < GREEDY_BELOW:
        return {"temperature": 0.0}
    return {
        "temperature": max(temperature, MIN_TEMPERATURE),
        "top_p": float(given.get("top_p", 1.0)),
        "top_k": max(int(given.get("top_k", 0)), 0),
        "min_p": float(given.get("min_p", 0.0)),
    }


def _strings(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _ids(ids: list[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)


def _bias(bias: Mapping[Any, float]) -> dict[int, float]:
    return {int(key): min(max(float(value), -100.0), 100.0) for key, value in bias.items()}


def _repetition(wire: Mapping[str, Any] | None) -> Repetition | None:
    if wire is None or not wire.get("max_pattern_size"):
        return None
    return Repetition(
        max_pattern_size=int(wire["max_pattern_size"]),
        min_pattern_size=max(int(wire.get("min_pattern_size") or 1), 1),
        min_count=int(wire.get("min_count") or 2),
    )

