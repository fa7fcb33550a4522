"""Bounds that a model sets to sampling parameters: vocabulary and logprobs (03-generate §7.1).

Pure functions of `ModelLimits`, in vLLM's words and order. Know no engine.
"""

from collections.abc import Iterable

from schemas.limits import ModelLimits
from schemas.refusals import bad_request, not_implemented
from schemas.sampling import SamplingParams

_MAX_LOGPROB_TOKEN_IDS = 128
_SCORES = "prompt_logprob_token_ids"


def check_sampling(params: SamplingParams, limits: ModelLimits) -> None:
    """Vocabulary and logprob bounds, as an engine checks them (03 §7.1)."""
    vocabulary = limits.vocab_size
    most = limits.logprobs_bound
    _check_count("logprobs", "sample", params.logprobs, most, vocabulary)
    _check_logprob_ids(params, vocabulary)
    _check_count("prompt_logprobs", "prompt", params.prompt_logprobs, most, vocabulary)
    _check_prompt_scores(params, limits)
    _check_vocabulary("logit_bias", params.logit_bias or (), vocabulary)
    if params.trace_decode_token_ids is not None:
        raise not_implemented("trace_decode_token_ids is not supported.")
    _check_vocabulary("stop_token_ids", params.stop_token_ids or (), vocabulary)
    _check_allowed_ids(params.allowed_token_ids, vocabulary)


def _check_count(name: str, kind: str, count: int | None, most: int, vocabulary: int) -> None:
    wanted = vocabulary if count == -1 else count or 0
    if wanted > most:
        raise bad_request(
            f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {most}",
            name,
            wanted,
        )


def _check_logprob_ids(params: SamplingParams, vocabulary: int) -> None:
    ids, name = params.logprob_token_ids, "logprob_token_ids"
    if ids is None:
        return
    count = len(ids)
    if count > _MAX_LOGPROB_TOKEN_IDS:
        raise bad_request(
            f"Requested logprob_token_ids of length {count}, "
            f"which is greater than max allowed: {_MAX_LOGPROB_TOKEN_IDS}",
            name,
            count,
        )
    _check_vocabulary(name, ids, vocabulary)
    if params.logprobs is not None and params.logprobs != count:
        raise bad_request(
            "When both logprobs and logprob_token_ids are set, logprobs must equal "
            f"len(logprob_token_ids). Got logprobs={params.logprobs}, "
            f"len(logprob_token_ids)={count}.",
            name,
            count,
        )


def _check_prompt_scores(params: SamplingParams, limits: ModelLimits) -> None:
    rows, start = params.prompt_logprob_token_ids, params.prompt_logprob_start
    if rows is not None:
        _check_score_shape(rows, limits)
        _check_score_ids(rows, limits.vocab_size)
        if start is not None and start < 0:
            raise bad_request(
                "prompt_logprob_start must be non-negative.", "prompt_logprob_start", start
            )
    elif start is not None:
        raise bad_request(
            "prompt_logprob_start requires prompt_logprob_token_ids.", "prompt_logprob_start", start
        )


def _check_score_shape(rows: list[list[int]], limits: ModelLimits) -> None:
    count, width = len(rows), max(map(len, rows), default=0)
    if not width:
        raise bad_request(
            f"{_SCORES} must be a non-empty integer array of shape [num_rows, num_ids].",
            _SCORES,
            (count, width),
        )
    most = limits.max_model_len - 1
    if count > most:
        raise bad_request(
            f"{_SCORES} has {count} rows, but a prompt has at most {most} scored rows "
            "(max_model_len - 1).",
            _SCORES,
            count,
        )
    if width > limits.logprobs_bound:
        raise bad_request(
            f"Requested {width} token ids per row in {_SCORES}, which is greater than max allowed: "
            f"{limits.logprobs_bound}. Set max_logprobs (--max-logprobs) to at least {width}.",
            _SCORES,
            width,
        )


def _check_score_ids(rows: list[list[int]], vocabulary: int) -> None:
    ids = [token for row in rows for token in row]
    if min(ids) < -1 or max(ids) >= vocabulary:
        raise bad_request(
            f"{_SCORES} contain out-of-vocab token ids (-1 pads a row). "
            f"Vocabulary size: {vocabulary}",
            _SCORES,
            [min(ids), max(ids)],
        )


def _check_vocabulary(name: str, ids: Iterable[int], vocabulary: int) -> None:
    outside = [token for token in ids if not 0 <= token < vocabulary]
    if outside:
        raise bad_request(
            f"token_id(s) {outside} in {name} contain out-of-vocab token ids. "
            f"Vocabulary size: {vocabulary}",
            name,
            outside,
        )


def _check_allowed_ids(ids: list[int] | None, vocabulary: int) -> None:
    name = "allowed_token_ids"
    if ids == []:
        raise bad_request("allowed_token_ids is not None and empty!", name, ids)
    outside = [token for token in ids or () if not 0 <= token < vocabulary]
    if outside:
        raise bad_request("allowed_token_ids contains out-of-vocab token id!", name, outside)
