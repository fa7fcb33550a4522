"""The derender endpoints for complete outputs (04 §3.1-3.2).

GenerateResponses in, OpenAI answers out. Pure but for the clock. Knows no envelope.
"""

from collections.abc import Sequence

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.derender import DerenderChatRequest, DerenderCompletionRequest
from schemas.generate import GenerateChoice, GenerateResponse
from schemas.refusals import bad_request
from schemas.responses import (
    ChatChoice,
    ChatCompletionResponse,
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from schemas.usage import Usage
from workers.derender.asked import chat_style, completion_style, wants_ids, window_decoder
from workers.derender.logprobs import chat_logprobs, completion_logprobs
from workers.derender.model import TextModel
from workers.derender.outputs import Ending, output_text, stop_rules
from workers.derender.parsing import (
    chat_finish_reason,
    chat_message,
    hides_metadata,
    message_reader,
)
from workers.text.detokenizer import WindowStream
from workers.text.parsers.message import Message, MessageReader


def derender_chat(request: DerenderChatRequest, model: TextModel) -> ChatCompletionResponse:
    given, chat = request.generate_response, request.chat_request
    reader = message_reader(chat, model)
    decoder = window_decoder(model, chat, keep_special=model.parsers.is_any)
    window = decoder.seed(_first(request.prompt_token_ids, given.prompt_token_ids))
    return ChatCompletionResponse(
        id=given.request_id,
        model=request.model or model.limits.served_name,
        choices=[
            _chat_choice(choice, given, chat, model, WindowStream(decoder, window), reader)
            for choice in given.choices
        ],
        usage=usage_of(request.prompt_tokens or 0, [given]),
        prompt_logprobs=given.prompt_logprobs,
        prompt_token_ids=given.prompt_token_ids if wants_ids(chat) else None,
        kv_transfer_params=given.kv_transfer_params,
        metrics=given.metrics,
    )


def derender_completion(request: DerenderCompletionRequest, model: TextModel) -> CompletionResponse:
    given, asked = request.generate_responses, request.completion_request
    first = given[0]
    seeds = request.prompt_token_ids or [None] * len(given)
    choices = [
        choice
        for response, seed in zip(given, seeds, strict=True)
        for choice in _completion_choices(response, seed, asked, model)
    ]
    for index, choice in enumerate(choices):
        choice.index = index
    is_same_transfer = all(r.kv_transfer_params == first.kv_transfer_params for r in given)
    return CompletionResponse(
        id=first.request_id,
        model=request.model or model.limits.served_name,
        choices=choices,
        usage=usage_of(sum(request.prompt_tokens or ()), given),
        kv_transfer_params=first.kv_transfer_params if is_same_transfer else None,
        metrics=first.metrics if len(given) == 1 else None,
    )


def usage_of(prompt_tokens: int, responses: Sequence[GenerateResponse]) -> Usage:
    completion = sum(len(c.token_ids or ()) for r in responses for c in r.choices)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
    )


def ending_of(choice: GenerateChoice) -> Ending:
    return Ending(choice.token_ids or (), choice.finish_reason, choice.stop_reason)


def _chat_choice(
    choice: GenerateChoice,
    response: GenerateResponse,
    request: ChatCompletionRequest | None,
    model: TextModel,
    stream: WindowStream,
    reader: MessageReader | None,
) -> ChatChoice:
    if not choice.token_ids:
        raise bad_request(f"choice {choice.index} has empty or null token_ids")
    text, reason = output_text(ending_of(choice), stream, stop_rules(request), model.eos)
    message = Message(None, text, ())
    if reader is not None:
        message = reader.whole(text, response.prompt_token_ids)
    is_hidden = hides_metadata(request, model)
    given = None if is_hidden else choice.logprobs
    return ChatChoice(
        index=choice.index,
        message=chat_message(
            message, response.request_id, choice.index, model.parsers, "assistant"
        ),
        logprobs=given and chat_logprobs(given, model.strings, chat_style(request)),
        finish_reason=chat_finish_reason(
            choice.finish_reason, request, has_called=bool(message.calls)
        ),
        stop_reason=reason,
        token_ids=choice.token_ids if wants_ids(request) and not is_hidden else None,
    )


def _completion_choices(
    response: GenerateResponse,
    seed: Sequence[int] | None,
    request: CompletionRequest | None,
    model: TextModel,
) -> list[CompletionChoice]:
    decoder = window_decoder(model, request)
    window = decoder.seed(_first(seed, response.prompt_token_ids))
    prompt_ids = response.prompt_token_ids if wants_ids(request) else None
    choices = []
    for choice in response.choices:
        if not choice.token_ids:
            raise bad_request(
                f"choice {choice.index} in response {response.request_id} has empty or null"
                " token_ids"
            )
        stream = WindowStream(decoder, window)
        text, reason = output_text(ending_of(choice), stream, stop_rules(request), model.eos)
        choices.append(
            CompletionChoice(
                index=choice.index,
                text=text,
                logprobs=_completion_logprobs(choice, request, model),
                finish_reason=choice.finish_reason,
                stop_reason=reason,
                token_ids=choice.token_ids if wants_ids(request) else None,
                prompt_token_ids=prompt_ids,
            )
        )
    return choices


def _completion_logprobs(
    choice: GenerateChoice, request: CompletionRequest | None, model: TextModel
) -> CompletionLogprobs | None:
    given = choice.logprobs
    if given is None:
        return None
    return completion_logprobs(
        chat_logprobs(given, model.strings, completion_style(request)), given
    )


def _first(*seeds: Sequence[int] | None) -> Sequence[int] | None:
    return next((seed for seed in seeds if seed is not None), None)
