"""The derender endpoints for one chunk of a stream (04 §3.3-3.4): chunk and state in, both out.

All that must be remembered between chunks travels in the state, with the client. Knows no envelope.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.derender import (
    DerenderChatStreamRequest,
    DerenderChatStreamResponse,
    DerenderCompletionStreamRequest,
    DerenderCompletionStreamResponse,
    StreamState,
)
from schemas.generate import GenerateChunk, GenerateStreamChoice
from schemas.refusals import bad_request
from schemas.responses import (
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatDelta,
    CompletionChunk,
    CompletionChunkChoice,
)
from schemas.usage import Usage
from workers.derender.asked import (
    chat_style,
    completion_style,
    stop_ending,
    wants_ids,
    window_decoder,
)
from workers.derender.logprobs import (
    chat_logprobs,
    completion_logprobs,
    context_after,
    end_offset,
)
from workers.derender.model import TextModel
from workers.derender.outputs import StopReason
from workers.derender.parsed_chunks import KeptStreams, parsed_choice
from workers.text.detokenizer import Window

AnyRequest = ChatCompletionRequest | CompletionRequest | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one chunk's tokens read as, and the state after them."""

    text: str
    stop_reason: StopReason
    state: StreamState


def derender_chat_chunk(
    request: DerenderChatStreamRequest, model: TextModel, kept: KeptStreams
) -> DerenderChatStreamResponse:
    """`kept`: parsers that have read what came before."""
    chunk, chat = request.generate_chunk, request.chat_request
    is_parsed = model.parsers.is_any
    state = request.stream_state or StreamState() if is_parsed else _state(request, model)
    choices = []
    for choice in _one_choice(chunk, "derender_chat_stream"):
        if is_parsed:
            answered, state = parsed_choice(request, choice, state, model, kept)
        else:
            answered, state = _plain_choice(choice, state, chat, model)
        choices.append(answered)
    answer = ChatCompletionChunk(
        id=chunk.request_id,
        model=request.model or model.limits.served_name,
        choices=choices,
        usage=_usage(chunk, request.prompt_tokens),
        prompt_token_ids=chunk.prompt_token_ids if wants_ids(chat) else None,
        metrics=chunk.metrics,
    )
    return DerenderChatStreamResponse(chunk=answer, stream_state=state)


def _plain_choice(
    choice: GenerateStreamChoice,
    state: StreamState,
    chat: ChatCompletionRequest | None,
    model: TextModel,
) -> tuple[ChatChunkChoice, StreamState]:
    decoded = _decode(choice, state, chat, model)
    before, given = state.logprob_context_token_ids, choice.logprobs
    answered = ChatChunkChoice(
        index=choice.index,
        delta=ChatDelta(
            role=None if state.role_sent else "assistant", content=decoded.text or None
        ),
        logprobs=given and chat_logprobs(given, model.strings, chat_style(chat), before),
        finish_reason=choice.finish_reason,
        stop_reason=decoded.stop_reason,
        token_ids=choice.token_ids if wants_ids(chat) else None,
    )
    return answered, decoded.state.model_copy(update={"role_sent": True})


def derender_completion_chunk(
    request: DerenderCompletionStreamRequest, model: TextModel
) -> DerenderCompletionStreamResponse:
    chunk, asked = request.generate_chunk, request.completion_request
    state = _state(request, model)
    choices = []
    for choice in _one_choice(chunk, "derender_completion_stream"):
        decoded = _decode(choice, state, asked, model)
        text_choice = _completion_choice(choice, decoded, state, asked, model)
        text_choice.prompt_token_ids = chunk.prompt_token_ids if wants_ids(asked) else None
        state = _with_offset(state, decoded, text_choice)
        choices.append(text_choice)
    answer = CompletionChunk(
        id=chunk.request_id,
        model=request.model or model.limits.served_name,
        choices=choices,
        usage=_usage(chunk, request.prompt_tokens),
        metrics=chunk.metrics,
    )
    return DerenderCompletionStreamResponse(chunk=answer, stream_state=state)


def _state(
    request: DerenderChatStreamRequest | DerenderCompletionStreamRequest, model: TextModel
) -> StreamState:
    """What the client brings; on the first chunk a window over the end of the prompt."""
    if request.stream_state is not None:
        return request.stream_state
    asked = (
        request.chat_request
        if isinstance(request, DerenderChatStreamRequest)
        else request.completion_request
    )
    seed = request.prompt_token_ids
    if seed is None:
        seed = request.generate_chunk.prompt_token_ids
    return _with_window(StreamState(), window_decoder(model, asked).seed(seed))


def _one_choice(chunk: GenerateChunk, endpoint: str) -> Sequence[GenerateStreamChoice]:
    """One state cannot serve two sequences. None at all is fine: a usage chunk has none."""
    if len(chunk.choices) > 1:
        raise bad_request(f"{endpoint} expects at most one choice per chunk")
    return chunk.choices


def _decode(
    choice: GenerateStreamChoice, state: StreamState, request: AnyRequest, model: TextModel
) -> Decoded:
    ids = choice.token_ids or []
    kept, reason = stop_ending(choice, request, model)
    window = Window(tuple(state.prev_tokens), state.prefix_offset, state.read_offset)
    text, window = window_decoder(model, request).feed(window, kept)
    after = context_after(state.logprob_context_token_ids, ids)
    state = _with_window(state, window).model_copy(update={"logprob_context_token_ids": after})
    return Decoded(text, reason, state)


def _with_window(state: StreamState, window: Window) -> StreamState:
    return state.model_copy(
        update={
            "prev_tokens": list(window.pieces),
            "prefix_offset": window.prefix,
            "read_offset": window.read,
        }
    )


def _completion_choice(
    choice: GenerateStreamChoice,
    decoded: Decoded,
    state: StreamState,
    request: CompletionRequest | None,
    model: TextModel,
) -> CompletionChunkChoice:
    given = choice.logprobs
    logprobs = None
    if given is not None:
        chat = chat_logprobs(
            given, model.strings, completion_style(request), state.logprob_context_token_ids
        )
        logprobs = completion_logprobs(chat, given, state.logprob_text_offset)
    return CompletionChunkChoice(
        index=choice.index,
        text=decoded.text,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        stop_reason=decoded.stop_reason,
        token_ids=choice.token_ids if wants_ids(request) else None,
    )


def _with_offset(
    before: StreamState, decoded: Decoded, choice: CompletionChunkChoice
) -> StreamState:
    """Offsets count reported tokens where there are any, else the visible text."""
    end = end_offset(choice.logprobs) if choice.logprobs else None
    if end is None:
        end = before.logprob_text_offset + len(decoded.text)
    return decoded.state.model_copy(update={"logprob_text_offset": end})


def _usage(chunk: GenerateChunk, prompt_tokens: int | None) -> Usage | None:
    if chunk.usage is None:
        return None
    prompt = chunk.usage.prompt_tokens if prompt_tokens is None else prompt_tokens
    completion = chunk.usage.completion_tokens or 0
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
