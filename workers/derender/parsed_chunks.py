"""The streaming derender endpoint where parsers are set up: chunk and state in, both out.

The state holds all tokens so far, and a parser is a function of them. Parsers that are at the end
of a state's tokens are kept for a while, under a digest of everything they depend on: a chunk that
follows its predecessor costs the same wherever it stands, and any other state is read from its
beginning.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import orjson

from schemas.derender import DerenderChatStreamRequest, StreamState
from schemas.generate import GenerateStreamChoice
from schemas.refusals import bad_request
from schemas.responses import (
    ChatChunkChoice,
    ChatDelta,
    FunctionCallDelta,
    ToolCallDelta,
)
from workers.derender.asked import chat_style, stop_ending, wants_ids, window_decoder
from workers.derender.logprobs import chat_logprobs, context_after
from workers.derender.model import TextModel
from workers.derender.outputs import StopReason
from workers.derender.parsing import (
    call_id,
    chat_finish_reason,
    hides_metadata,
    message_reader,
    parse_options,
)
from workers.text.detokenizer import WindowStream
from workers.text.parsers.base import Delta, Token
from workers.text.parsers.message import MessageStream

MAX_KEPT = 1024
"""Parsers that one worker keeps; the one that was used longest ago is dropped first."""


class KeptStreams:
    """Parsers by the digest of what they have read. Each is handed out once: it goes on."""

    def __init__(self, limit: int = MAX_KEPT) -> None:
        self._limit = limit
        self._lock = Lock()
        self._streams: OrderedDict[bytes, ParsedOutput] = OrderedDict()

    def take(self, key: bytes) -> "ParsedOutput | None":
        with self._lock:
            return self._streams.pop(key, None)

    def keep(self, key: bytes, stream: "ParsedOutput") -> None:
        with self._lock:
            self._streams[key] = stream
            if len(self._streams) > self._limit:
                self._streams.popitem(last=False)


class ParsedOutput:
    """One output, its tokens decoded with all marks and read by the parsers."""

    def __init__(self, decoder: WindowStream, messages: MessageStream) -> None:
        self._decoder = decoder
        self.messages = messages

    def push(self, ids: Sequence[int], *, is_last: bool) -> list[Delta]:
        tokens = [Token(token_id, self._decoder.feed([token_id])) for token_id in ids]
        return self.messages.push(tokens, is_last=is_last)


@dataclass(frozen=True, slots=True)
class _Step:
    deltas: Sequence[Delta]
    stop_reason: StopReason
    has_called: bool


def parsed_choice(
    request: DerenderChatStreamRequest,
    choice: GenerateStreamChoice,
    state: StreamState,
    model: TextModel,
    kept: KeptStreams,
) -> tuple[ChatChunkChoice, StreamState]:
    """ApiError 400 for a state that cannot be read."""
    try:
        step = _step(request, choice, state, model, kept)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError):
        raise bad_request("invalid stream_state: derender failed") from None
    ids, call_ids = choice.token_ids or [], list(state.last_tool_call_ids)
    delta = _chat_delta(step.deltas, request.generate_chunk.request_id, choice, model, call_ids)
    delta.role = None if state.role_sent else "assistant"
    has_called = state.tools_streamed or step.has_called
    answer = _answer(request, choice, state, delta, model)
    answer.stop_reason = step.stop_reason
    if choice.finish_reason is not None:
        answer.finish_reason = chat_finish_reason(
            choice.finish_reason, request.chat_request, has_called=has_called
        )
    update = {
        "output_token_ids": [*state.output_token_ids, *ids],
        "output_chunk_lens": [*state.output_chunk_lens, *([len(ids)] if ids else [])],
        "role_sent": True,
        "tools_streamed": has_called,
        "last_tool_call_ids": call_ids,
        "logprob_context_token_ids": context_after(state.logprob_context_token_ids, ids),
    }
    return answer, state.model_copy(update=update)


def _step(
    request: DerenderChatStreamRequest,
    choice: GenerateStreamChoice,
    state: StreamState,
    model: TextModel,
    kept: KeptStreams,
) -> _Step:
    chat, ids, is_last = request.chat_request, choice.token_ids or [], choice.finish_reason
    text_ids, reason = stop_ending(choice, chat, model)
    if not ids and (is_last is None or not state.output_token_ids):
        return _Step((), reason, has_called=False)
    place = _Place(_digest(request, model), state)
    stream = kept.take(place.key)
    if stream is None:
        stream = _replayed(request, state, model)
    deltas = stream.push(text_ids, is_last=is_last is not None)
    if is_last is None:
        place.add(ids, [len(ids)])
        kept.keep(place.key, stream)
    return _Step(deltas, reason, any(delta.channel == "tool" for delta in deltas))


def _replayed(
    request: DerenderChatStreamRequest, state: StreamState, model: TextModel
) -> ParsedOutput:
    """From the beginning, in the chunks that the tokens came in. Bounded by the context length."""
    reader = message_reader(request.chat_request, model)
    assert reader is not None, "a parser is set up and the request is there"
    prompt = request.prompt_token_ids or []
    decoder = window_decoder(model, request.chat_request, keep_special=True)
    window = WindowStream(decoder, decoder.seed(prompt))
    stream = ParsedOutput(window, reader.incremental(prompt))
    start = 0
    for size in state.output_chunk_lens:
        stream.push(state.output_token_ids[start : start + size], is_last=False)
        start += size
    return stream


def _digest(request: DerenderChatStreamRequest, model: TextModel) -> bytes:
    """Of all that a parser's state depends on but the output."""
    assert request.chat_request is not None, "checked before"
    options = parse_options(request.chat_request, model.template_kwargs)
    digest = hashlib.blake2b(repr(options).encode(errors="surrogatepass"), digest_size=16)
    digest.update(_packed(request.prompt_token_ids or []))
    return digest.digest()


class _Place:
    """Digests of the tokens so far and of the chunks that they came in."""

    def __init__(self, base: bytes, state: StreamState) -> None:
        self._ids = hashlib.blake2b(base, digest_size=16)
        self._lens = hashlib.blake2b(digest_size=16)
        self.add(state.output_token_ids, state.output_chunk_lens)

    def add(self, ids: Sequence[int], lens: Sequence[int]) -> None:
        self._ids.update(_packed(ids))
        self._lens.update(_packed(lens))

    @property
    def key(self) -> bytes:
        return self._ids.digest() + self._lens.digest()


def _packed(numbers: Sequence[int]) -> bytes:
    """Numbers as text that more may follow. TypeError beyond 64 bits."""
    return orjson.dumps(numbers)[1:-1] + b"," if numbers else b""


def _chat_delta(
    deltas: Sequence[Delta],
    request_id: str,
    choice: GenerateStreamChoice,
    model: TextModel,
    call_ids: list[str],
) -> ChatDelta:
    """`call_ids`: of the calls so far, by position; new ones are added."""
    result = ChatDelta()
    for delta in deltas:
        if delta.channel == "content":
            result.content = (result.content or "") + delta.text
        elif delta.channel == "reasoning":
            result.reasoning = (result.reasoning or "") + delta.text
        else:
            result.tool_calls.append(_call_delta(delta, request_id, choice.index, model, call_ids))
    return result


def _call_delta(
    delta: Delta, request_id: str, choice: int, model: TextModel, call_ids: list[str]
) -> ToolCallDelta:
    function = FunctionCallDelta(name=delta.name, arguments=delta.text)
    if delta.name is None:
        return ToolCallDelta(index=delta.tool, function=function)
    if delta.tool >= len(call_ids):
        is_short = model.parsers.has_short_ids
        call_ids.append(call_id(request_id, choice, delta.tool, is_short=is_short))
    function.arguments = delta.text or None
    own = call_ids[min(delta.tool, len(call_ids) - 1)]
    return ToolCallDelta(id=own, type="function", index=delta.tool, function=function)


def _answer(
    request: DerenderChatStreamRequest,
    choice: GenerateStreamChoice,
    state: StreamState,
    delta: ChatDelta,
    model: TextModel,
) -> ChatChunkChoice:
    chat = request.chat_request
    is_hidden = hides_metadata(chat, model)
    given = None if is_hidden else choice.logprobs
    before = state.logprob_context_token_ids
    return ChatChunkChoice(
        index=choice.index,
        delta=delta,
        logprobs=given and chat_logprobs(given, model.strings, chat_style(chat), before),
        token_ids=choice.token_ids if wants_ids(chat) and not is_hidden else None,
    )
