"""Serving checks: what a valid body may still not ask of this deployment, as pure functions.

Each raises the ApiError that vLLM answers, for the first violation in its order (03 §2 B).
Knows `ModelLimits`; whatever needs a tokenizer, a template or an engine is checked by its stage.
"""

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
from schemas.sampling_limits import check_sampling
from schemas.tokenize import TokenizeChatRequest

_RENDERS = (Kind.CHAT_RENDER, Kind.COMPLETION_RENDER)


def check_request(kind: Kind, request: BaseModel, limits: ModelLimits) -> None:
    """All checks of an endpoint that need nothing but its body and the limits.

    Derender's are `schemas.derender_checks`: they depend on its parsers.
    """
    check_model(getattr(request, "model", None), limits)
    match request:
        case ChatCompletionRequest():
            _check_beam_search(kind, request.use_beam_search)
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
    if request.suffix is not None and request.prompts:
        # The parameter is told beside the message here, not in it.
        raise ApiError(
            "suffix is only supported for models with FIM completion rendering", param="suffix"
        )


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
            f"prompt_logprob_token_ids has {len(rows)} rows, but the prompt has {scored} "
            "scored rows (prompt_len - 1 - prompt_logprob_start).",
            "prompt_logprob_token_ids",
            len(rows),
        )
    room = longest - length
    if params.max_tokens is None and params.min_tokens > room:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={room}, got {params.min_tokens}."
        )
