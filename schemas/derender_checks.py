"""Bounds of derender requests, checked before anything is decoded (04-derender §2).

Pure functions in vLLM's order. Know `ModelLimits` and whether a parser is configured.
"""

from collections.abc import Iterable
from typing import TypeAlias

from schemas.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from schemas.generate import GenerateChoice, GenerateChunk, GenerateResponse
from schemas.limits import ModelLimits, check_model
from schemas.refusals import bad_request

Derender: TypeAlias = (
    DerenderChatRequest
    | DerenderCompletionRequest
    | DerenderChatStreamRequest
    | DerenderCompletionStreamRequest
)


def check_derender(request: Derender, limits: ModelLimits, *, has_parser: bool) -> None:
    """Raise ApiError for what must not reach the tokenizer."""
    check_model(request.model, limits)
    match request:
        case DerenderChatRequest():
            _check_chat(request, limits, has_parser)
        case DerenderCompletionRequest():
            _check_completion(request, limits)
        case DerenderChatStreamRequest():
            _check_chat_chunk(request, limits, has_parser)
        case DerenderCompletionStreamRequest():
            _check_completion_chunk(request, limits)


def _check_chat(request: DerenderChatRequest, limits: ModelLimits, has_parser: bool) -> None:
    response = request.generate_response
    _check_responses([response], limits)
    _check_prompts([request.prompt_token_ids], limits)
    _check_chat_given(request.chat_request, has_parser)
    for choice in response.choices:
        if not choice.token_ids:
            raise bad_request(f"choice {choice.index} has empty or null token_ids")


def _check_completion(request: DerenderCompletionRequest, limits: ModelLimits) -> None:
    if not request.generate_responses:
        raise bad_request("generate_responses must not be empty")
    _check_responses(request.generate_responses, limits)
    _check_prompts(request.prompt_token_ids or (), limits)
    for response in request.generate_responses:
        for choice in response.choices:
            if not choice.token_ids:
                raise bad_request(
                    f"choice {choice.index} in response {response.request_id} "
                    "has empty or null token_ids"
                )


def _check_chat_chunk(
    request: DerenderChatStreamRequest, limits: ModelLimits, has_parser: bool
) -> None:
    _check_no_stop(request.chat_request.stop if request.chat_request else None)
    _check_chat_given(request.chat_request, has_parser)
    if has_parser and request.prompt_token_ids is None:
        raise bad_request(
            "prompt_token_ids is required when a tool or reasoning parser is configured. Without "
            "it parse_delta cannot tell whether the prompt left reasoning open (e.g. a chat "
            "template that pre-opens <think>) and would misclassify reasoning content as plain "
            "content."
        )
    choices = len(request.generate_chunk.choices)
    if choices > 1:
        raise bad_request(
            f"derender_chat_stream expects at most one choice per chunk (got {choices})."
        )
    _check_replay(request, limits.max_model_len)


def _check_replay(request: DerenderChatStreamRequest, longest: int) -> None:
    """A parser replays the prompt and the whole output on every chunk: all count together."""
    prompt = len(request.prompt_token_ids or ())
    output = len(request.stream_state.output_token_ids) if request.stream_state else 0
    delta = _count_tokens(request.generate_chunk)
    if prompt + output + delta > longest:
        raise bad_request(
            f"prompt_token_ids length ({prompt}) plus output_token_ids length ({output}) plus "
            f"delta ({delta}) exceeds max_model_len ({longest})."
        )


def _check_completion_chunk(request: DerenderCompletionStreamRequest, limits: ModelLimits) -> None:
    _check_no_stop(request.completion_request.stop if request.completion_request else None)
    _check_prompts([request.prompt_token_ids], limits)
    if len(request.generate_chunk.choices) > 1:
        raise bad_request("derender_completion_stream expects at most one choice per chunk")
    delta, longest = _count_tokens(request.generate_chunk), limits.max_model_len
    if delta > longest:
        raise bad_request(f"delta length ({delta}) exceeds max_model_len ({longest}).")


def _count_tokens(chunk: GenerateChunk) -> int:
    return sum(len(choice.token_ids or ()) for choice in chunk.choices)


def _check_no_stop(stop: str | list[str] | None) -> None:
    if stop:
        raise bad_request(
            "stop strings are not supported by streaming derender because text already sent cannot "
            "be cut. Use non-streaming derender or output_mode=text on /inference/v1/generate "
            "which holds stop strings back."
        )


def _check_chat_given(chat_request: object, has_parser: bool) -> None:
    if has_parser and chat_request is None:
        raise bad_request(
            "chat_request is required when a tool or reasoning parser is configured because plain "
            "detokenization would leak raw parser markup into content."
        )


def _check_responses(responses: list[GenerateResponse], limits: ModelLimits) -> None:
    most = limits.max_n_sequences
    if len(responses) > most:
        raise bad_request(
            f"generate_responses count ({len(responses)}) exceeds server maximum ({most}). "
            "Set VLLM_MAX_N_SEQUENCES to increase this limit."
        )
    for response in responses:
        _check_response(response, limits)


def _check_response(response: GenerateResponse, limits: ModelLimits) -> None:
    count, most = len(response.choices), limits.max_n_sequences
    if count > most:
        raise bad_request(
            f"choices count ({count}) in response '{response.request_id}' "
            f"exceeds server maximum ({most})."
        )
    for choice in response.choices:
        _check_choice(choice, limits)
    scored = len(response.prompt_logprobs or ())
    if scored > limits.max_model_len:
        raise bad_request(
            f"prompt_logprobs length ({scored}) in response '{response.request_id}' "
            f"exceeds max_model_len ({limits.max_model_len})."
        )


def _check_choice(choice: GenerateChoice, limits: ModelLimits) -> None:
    index, longest = choice.index, limits.max_model_len
    entries = (choice.logprobs and choice.logprobs.content) or []
    for name, size in (
        ("token_ids", len(choice.token_ids or ())),
        ("logprobs.content", len(entries)),
    ):
        if size > longest:
            raise bad_request(
                f"{name} length ({size}) in choice {index} exceeds max_model_len ({longest})."
            )
    if limits.max_logprobs < 0:
        return
    counts = (len(entry.top_logprobs) for entry in entries)
    too_many = next((count for count in counts if count > limits.max_logprobs), None)
    if too_many is not None:
        raise bad_request(
            f"top_logprobs count ({too_many}) in choice {index} "
            f"exceeds max_logprobs ({limits.max_logprobs})."
        )


def _check_prompts(prompts: Iterable[list[int] | None], limits: ModelLimits) -> None:
    for ids in prompts:
        if ids is not None and len(ids) > limits.max_model_len:
            raise bad_request(
                f"prompt_token_ids length ({len(ids)}) exceeds "
                f"max_model_len ({limits.max_model_len})."
            )
