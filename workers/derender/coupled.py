"""Answers of `/v1/chat/completions` and `/v1/completions` (07 §1, §3) from the stages' parts.

Reads as an engine does it: its own incremental decoding, its candidates cut, echoes put before the
output. Pure but for the clock. Knows no envelope.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.errors import DecodeError
from schemas.generate import GenerateChoice, GenerateResponse
from schemas.responses import (
    ChatChoice,
    ChatCompletionResponse,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from schemas.sampling import SamplingParams
from schemas.usage import CompletionTokensDetails, Usage
from workers.derender.asked import wants_ids
from workers.derender.choice import ChoiceStream, TokenTexts
from workers.derender.echo import echoed_logprobs, joined, last_content
from workers.derender.logprobs import (
    LogprobStyle,
    chat_limit,
    chat_logprobs,
    completion_limit,
    completion_logprobs,
    end_offset,
)
from workers.derender.model import TextModel
from workers.derender.outputs import StopReason, output_text, stop_rules
from workers.derender.parsing import (
    chat_finish_reason,
    chat_message,
    hides_metadata,
    message_reader,
)
from workers.derender.stopping import cut_at
from workers.derender.whole import ending_of, usage_of
from workers.text.detokenizer import StreamDecoder
from workers.text.parsers.message import Message


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt and all its outputs."""

    request_id: str
    prompt_ids: Sequence[int]
    prompt_text: str | None
    sampling: SamplingParams
    response: GenerateResponse


def read_generations(
    prompts: Sequence[Mapping[str, Any]], generated: Sequence[Mapping[str, Any]]
) -> list[Generation]:
    """From the parts that render and prefill wrote. DecodeError where they did not."""
    try:
        return [_generation(*pair) for pair in zip(prompts, generated, strict=True)]
    except (KeyError, ValueError) as error:
        raise DecodeError(f"not what render and prefill hand on: {error}") from error


def _generation(prompt: Mapping[str, Any], response: Mapping[str, Any]) -> Generation:
    return Generation(
        request_id=prompt["request_id"],
        prompt_ids=prompt["token_ids"],
        prompt_text=prompt.get("prompt_text"),
        sampling=SamplingParams.model_validate(prompt["sampling_params"]),
        response=GenerateResponse.model_validate(response),
    )


def chat_answer(
    request: ChatCompletionRequest, generation: Generation, model: TextModel
) -> ChatCompletionResponse:
    given = generation.response
    role = role_of(request, model)
    echo = last_content(request.messages, role) if request.echo else ""
    outputs = [_chat_output(choice, request, generation, model) for choice in given.choices]
    return ChatCompletionResponse(
        id=generation.request_id,
        model=model.limits.served_name,
        choices=[
            _chat_choice(choice, output, request, generation, model, role, echo)
            for choice, output in zip(given.choices, outputs, strict=True)
        ],
        system_fingerprint=model.fingerprint,
        usage=_chat_usage(generation, outputs, model),
        prompt_logprobs=given.prompt_logprobs,
        prompt_token_ids=list(generation.prompt_ids) if wants_ids(request) else None,
        prompt_text=generation.prompt_text if request.return_prompt_text else None,
        kv_transfer_params=given.kv_transfer_params,
        metrics=given.metrics,
    )


def completion_answer(
    request: CompletionRequest, generations: Sequence[Generation], model: TextModel
) -> CompletionResponse:
    choices = [
        _completion_choice(choice, request, generation, model)
        for generation in generations
        for choice in generation.response.choices
    ]
    for index, choice in enumerate(choices):
        choice.index = index
    first = generations[0]
    is_single = len(generations) == 1
    return CompletionResponse(
        id=first.request_id if is_single else first.request_id.removesuffix("-0"),
        model=model.limits.served_name,
        choices=choices,
        system_fingerprint=model.fingerprint,
        usage=_usage(generations),
        kv_transfer_params=first.response.kv_transfer_params,
        metrics=first.response.metrics if is_single else None,
    )


def role_of(request: ChatCompletionRequest, model: TextModel) -> str:
    if request.add_generation_prompt or not request.messages:
        return model.response_role
    return str(request.messages[-1]["role"])


def _text(
    choice: GenerateChoice, generation: Generation, model: TextModel
) -> tuple[str, int | str | None]:
    decoder = stream_decoder(generation, model)
    return output_text(ending_of(choice), decoder, stop_rules(generation.sampling), model.eos)


def stream_decoder(generation: Generation, model: TextModel) -> StreamDecoder:
    """For one output: decodes as the engine does, from the end of the prompt on."""
    params = generation.sampling
    return StreamDecoder(
        model.tokenizer,
        generation.prompt_ids,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )


@dataclass(frozen=True, slots=True)
class _ChatOutput:
    """What one choice's tokens read as."""

    message: Message
    finish_reason: str | None
    stop_reason: StopReason
    num_tokens: int
    """Up to the one that completed a stop string."""
    reasoning_tokens: int = 0


def _chat_output(
    choice: GenerateChoice,
    request: ChatCompletionRequest,
    generation: Generation,
    model: TextModel,
) -> _ChatOutput:
    ids = choice.token_ids or []
    reader = message_reader(request, model)
    if reader is None:
        text, reason = _text(choice, generation, model)
        message = Message(None, text, ())
        return _ChatOutput(message, choice.finish_reason, reason, len(ids))
    rules = stop_rules(generation.sampling)
    stops_inside = model.stop_scope == "content" and not isinstance(choice.stop_reason, str)
    stream = ChoiceStream(
        request,
        generation.prompt_ids,
        model,
        request_id=generation.request_id,
        rules=rules if stops_inside else replace(rules, strings=()),
    )
    grown = stream.push(ids, choice.finish_reason, choice.stop_reason)
    ending = replace(ending_of(choice), token_ids=ids[: grown.num_tokens])
    decoder = TokenTexts(request, generation.prompt_ids, model)
    outer_rules = replace(rules, strings=()) if stops_inside else rules
    text, reason = output_text(ending, decoder, outer_rules, model.eos)
    message = reader.whole(text, generation.prompt_ids)
    if stream.has_stopped:
        reason = grown.stop_reason
        message = message._replace(content=cut_at(message.content, str(reason), rules))
    finish_reason = "stop" if stream.has_stopped else choice.finish_reason
    return _ChatOutput(message, finish_reason, reason, grown.num_tokens, grown.reasoning_tokens)


def _chat_usage(generation: Generation, outputs: Sequence[_ChatOutput], model: TextModel) -> Usage:
    completion = sum(output.num_tokens for output in outputs)
    prompt = len(generation.prompt_ids)
    details = None
    if model.parsers.reasoning is not None:
        reasoning = sum(output.reasoning_tokens for output in outputs)
        details = CompletionTokensDetails(reasoning_tokens=reasoning)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        completion_tokens_details=details,
    )


def _chat_choice(
    choice: GenerateChoice,
    output: _ChatOutput,
    request: ChatCompletionRequest,
    generation: Generation,
    model: TextModel,
    role: str,
    echo: str,
) -> ChatChoice:
    message = output.message
    if echo:
        message = message._replace(content=echo + (message.content or ""))
    shows = not hides_metadata(request, model)
    ids = (choice.token_ids or [])[: output.num_tokens]
    return ChatChoice(
        index=choice.index,
        message=chat_message(message, generation.request_id, choice.index, model.parsers, role),
        logprobs=_chat_logprobs(choice, request, model) if request.logprobs and shows else None,
        finish_reason=chat_finish_reason(
            output.finish_reason, request, has_called=bool(message.calls)
        ),
        stop_reason=output.stop_reason,
        token_ids=ids if wants_ids(request) and shows else None,
        routed_experts=choice.routed_experts,
    )


def _chat_logprobs(
    choice: GenerateChoice, request: ChatCompletionRequest, model: TextModel
) -> ChatLogprobs | None:
    if choice.logprobs is None:
        return None
    return chat_logprobs(choice.logprobs, model.strings, logprob_style(request))


def logprob_style(request: ChatCompletionRequest | CompletionRequest) -> LogprobStyle:
    is_all = bool(request.logprob_token_ids)
    if isinstance(request, ChatCompletionRequest):
        limit = chat_limit(top_logprobs=request.top_logprobs, is_all=is_all)
    else:
        limit = completion_limit(request.logprobs, is_all=is_all)
    is_as_ids = bool(request.return_tokens_as_token_ids)
    return LogprobStyle(limit, as_ids=is_as_ids, is_engines=True)


def _completion_choice(
    choice: GenerateChoice, request: CompletionRequest, generation: Generation, model: TextModel
) -> CompletionChoice:
    text, reason = _text(choice, generation, model)
    return CompletionChoice(
        index=choice.index,
        text=prompt_echo(request, generation, model) + ("" if is_prompt_only(request) else text),
        logprobs=_completion_logprobs(choice, request, generation, model),
        finish_reason=choice.finish_reason,
        stop_reason=reason,
        token_ids=(choice.token_ids or []) if wants_ids(request) else None,
        prompt_logprobs=generation.response.prompt_logprobs,
        prompt_token_ids=list(generation.prompt_ids) if wants_ids(request) else None,
        routed_experts=choice.routed_experts,
    )


def is_prompt_only(request: CompletionRequest) -> bool:
    """`max_tokens: 0` with an echo: a token is generated, and not shown."""
    return bool(request.echo) and request.max_tokens == 0


def prompt_echo(request: CompletionRequest, generation: Generation, model: TextModel) -> str:
    """What goes before the text where the request asks for an echo."""
    if not request.echo or request.return_token_ids:
        return ""  # who asked for ids has the prompt already, by its ids
    if generation.prompt_text is not None:
        return generation.prompt_text
    return model.tokenizer.decode(generation.prompt_ids, skip_special_tokens=True)


def _completion_logprobs(
    choice: GenerateChoice, request: CompletionRequest, generation: Generation, model: TextModel
) -> CompletionLogprobs | None:
    if request.logprobs is None:
        return None
    style = logprob_style(request)
    echo = echoed_logprobs_of(request, generation, model, style)
    if choice.logprobs is None or is_prompt_only(request):
        return echo
    chat = chat_logprobs(choice.logprobs, model.strings, style)
    start = end_offset(echo) or 0
    return joined(echo, completion_logprobs(chat, choice.logprobs, start))


def echoed_logprobs_of(
    request: CompletionRequest, generation: Generation, model: TextModel, style: LogprobStyle
) -> CompletionLogprobs:
    prompt_logprobs = generation.response.prompt_logprobs
    if not request.echo or prompt_logprobs is None:
        return CompletionLogprobs()
    return echoed_logprobs(generation.prompt_ids, prompt_logprobs, model.strings, style)


def _usage(generations: Sequence[Generation]) -> Usage:
    prompt = sum(len(generation.prompt_ids) for generation in generations)
    return usage_of(prompt, [generation.response for generation in generations])
