"""Ranges of sampling parameters, in vLLM's words and order (03-generate §7.1). Knows no model."""

import math
from typing import TYPE_CHECKING, Any

from schemas.limits import ModelLimits
from schemas.refusals import bad_request

if TYPE_CHECKING:
    from schemas.sampling import SamplingParams


def check_ranges(params: "SamplingParams", limits: ModelLimits) -> None:
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


def _check_penalties(params: "SamplingParams") -> None:
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


def _check_nucleus(params: "SamplingParams") -> None:
    if not 0.0 < params.top_p <= 1.0:
        raise bad_request(f"top_p must be in (0, 1], got {params.top_p}.", "top_p", params.top_p)
    if params.top_k < -1:
        raise bad_request(f"top_k must be 0 (disable), or at least 1, got {params.top_k}.")
    if not 0.0 <= params.min_p <= 1.0:
        raise bad_request(f"min_p must be in [0, 1], got {params.min_p}.")


def _check_lengths(params: "SamplingParams") -> None:
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


def _check_words(params: "SamplingParams") -> None:
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
