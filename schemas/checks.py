"""Serving checks: what a valid body may still not ask of this deployment, as pure functions.

Each raises the ApiError that vLLM answers, for the first violation in its order (03 §2 B).
Knows `ModelLimits`; whatever needs a tokenizer, a template or an engine is checked by its stage.
"""

from collections.abc import Iterable

import msgpack
from pydantic import BaseModel

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.errors import ApiError
from schemas.generate import GenerateRequest
from schemas.limits import ModelLimits, check_model
from schemas.messages import check_parts
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import bad_request, not_implemented
from schemas.routes import Kind
from schemas.sampling import SamplingParams
from schemas.tokenize import TokenizeChatRequest

_MAX_LOGPROB_TOKEN_IDS = 128
_SCORES = "prompt_logprob_token_ids"
_RENDERS = (Kind.CHAT_RENDER, Kind.COMPLETION_RENDER)


def check_request(kind: Kind, request: BaseModel, limits: ModelLimits) -> None:
    """All checks of an endpoint that need nothing but its body and the limits.

    Derender's are `schemas.derender_checks`: they depend on its parsers.
    """
    check_model(getattr(request, "model", None), limits)
    match request:
        case ChatCompletionRequest():
            _check_beam_search(kind, request.use_beam_search)
            check_parts(request.messages)
        case CompletionRequest():
            _check_beam_search(kind, request.use_beam_search)
            _check_completion(request)
        case TokenizeChatRequest():
            check_parts(request.messages)
        case ResponsesRequest():
            _check_no_state(request)
        case GenerateRequest():
            check_generate(request, limits)


def _check_beam_search(kind: Kind, wanted: bool) -> None:
    if wanted and kind in _RENDERS:
        raise bad_request("Beam search is not supported by the render endpoint")
    if wanted:
        raise not_implemented("Beam search is not supported.")


def _check_no_state(request: ResponsesRequest) -> None:
    if request.previous_response_id is not None:
        raise ApiError(
            "previous_response_id is not supported by the stateless render endpoint.",
            type="invalid_request_error",
            param="previous_response_id",
        )


def _check_completion(request: CompletionRequest) -> None:
    if request.suffix is not None:
        # The parameter is told beside the message here, not in it.
        raise ApiError(
            "suffix is only supported for models with FIM completion rendering", param="suffix"
        )
    if not request.prompts and request.prompt_embeds is None:
        raise bad_request("You must pass at least one prompt", "prompt")


def check_generate(request: GenerateRequest, limits: ModelLimits) -> None:
    """Counts, lengths and ids of a generate request."""
    params = request.sampling_params
    if params.n > limits.max_num_seqs:
        raise bad_request(
            "sampling_params.n must be at most the server's max_num_seqs "
            f"({limits.max_num_seqs}), got {params.n}."
        )
    _check_mode(request)
    _check_transferable(request.kv_transfer_params, request.ec_transfer_params)
    length = len(request.token_ids)
    if not params.gave("max_tokens") and length > limits.max_model_len:
        raise bad_request(
            f"Input length ({length}) exceeds model's maximum context length "
            f"({limits.max_model_len})."
        )
    check_sampling(params, limits)
    check_prompt(request.token_ids, limits)
    _check_positions(params, length, limits.max_model_len)


def _check_mode(request: GenerateRequest) -> None:
    if not request.stream:
        return
    if request.sampling_params.prompt_logprob_token_ids is not None:
        raise bad_request("prompt_logprob_token_ids are not available when stream=true.")
    if request.output_mode == "derender":
        raise bad_request("output_mode='derender' does not support stream=true.")


def _check_transferable(*params: object) -> None:
    """Transfer parameters reach engines as msgpack, which holds integers of 64 bits only."""
    try:
        msgpack.packb(params)
    except (OverflowError, TypeError, ValueError) as error:
        raise bad_request(f"transfer parameters cannot be passed on: {error}") from None


def check_prompt(token_ids: list[int], limits: ModelLimits) -> None:
    """Length and vocabulary of a prompt, as an engine checks them."""
    length, longest = len(token_ids), limits.max_model_len
    if length > longest:
        raise bad_request(
            f"The decoder prompt (length {length}) is longer than the maximum model length of "
            f"{longest}. Make sure that `max_model_len` is no smaller than the number of text "
            "tokens plus multimodal tokens. For image inputs, the number of image tokens depends "
            "on the number of images, and possibly their aspect ratios as well."
        )
    if length == longest:
        raise bad_request(
            f"The decoder prompt (length {length}) plus the number of requested output tokens "
            f"(at least 1) is longer than the maximum model length of {longest}. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens (prompt + requested "
            "output tokens)."
        )
    highest = max(token_ids)
    if highest >= limits.vocab_size:
        raise bad_request(f"Token id {highest} is out of vocabulary")


def _check_positions(params: SamplingParams, length: int, longest: int) -> None:
    start = params.routed_experts_prompt_start
    if not 0 <= start <= length:
        raise bad_request(
            f"routed_experts_prompt_start must be between 0 and the prompt length ({length}), "
            "inclusive.",
            "routed_experts_prompt_start",
            start,
        )
    rows = params.prompt_logprob_token_ids
    scored = max(length - 1 - (params.prompt_logprob_start or 0), 0)
    if rows is not None and len(rows) != scored:
        raise bad_request(
            f"{_SCORES} has {len(rows)} rows, but the prompt has {scored} scored rows "
            "(prompt_len - 1 - prompt_logprob_start).",
            _SCORES,
            len(rows),
        )
    room = longest - length
    if params.max_tokens is None and params.min_tokens > room:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={room}, got {params.min_tokens}."
        )


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
