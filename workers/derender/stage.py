"""The derender stage: the last stop of whatever ends in text.

Decides by the kind of request what to make of the parts; the work itself is pure functions, which
run on threads. Imports no tensor library.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel

from runtime.model_dir import read_model
from runtime.settings import ModelSettings
from runtime.stage import Job
from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from schemas.derender_checks import check_derender
from schemas.envelope import GENERATED, PROMPTS, REQUEST, Envelope, ReplyTo
from schemas.errors import DecodeError
from schemas.limits import ModelLimits, check_model
from schemas.records.derender import TokensRecord
from schemas.records.reply import StreamPiece
from schemas.refusals import bad_request
from schemas.routes import Kind, Stop
from schemas.tokenize import DetokenizeRequest, DetokenizeResponse
from schemas.validation import parse_body
from workers.derender.answers import NOT_COUPLED, answer_bytes
from workers.derender.chunks import derender_chat_chunk, derender_completion_chunk
from workers.derender.coupled import chat_answer, completion_answer, read_generations
from workers.derender.model import StopScope, TextModel, open_text_model
from workers.derender.parsed_chunks import KeptStreams
from workers.derender.streaming import RequestStream, Streams, all_tokens
from workers.derender.whole import derender_chat, derender_completion
from workers.text.tokenizer import Tokenizer

Parts = Sequence[Mapping[str, Any]]

THREADS = 2
"""Decoding holds the interpreter lock: more would not be faster, and one would queue behind a long
output."""


class DerenderStage:
    """One per process."""

    stop = Stop.DERENDER

    def __init__(
        self,
        settings: ModelSettings,
        limits: ModelLimits,
        *,
        response_role: str = "assistant",
        tokenizer: Tokenizer | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        stop_scope: StopScope = "content",
    ) -> None:
        """`tokenizer` is loaded from the model's directory where it is not at hand yet.

        `template_kwargs`: template variables where requests say nothing. `stop_scope`: where stop
        strings count in chats whose output is parsed.
        """
        self._settings = settings
        self._limits = limits
        self._response_role = response_role
        self._tokenizer = tokenizer
        self._template_kwargs = template_kwargs
        self._stop_scope = stop_scope
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="derender")
        self._model: TextModel | None = None
        self._streams = Streams()
        self._kept = KeptStreams()

    async def start(self) -> None:
        """Raise SettingsError where the directory holds no usable tokenizer."""
        self._model = await self._run(self._open)

    async def process(self, job: Job) -> None:
        kind, raw = job.envelope.kind, await job.read(REQUEST)
        if kind not in (Kind.CHAT, Kind.COMPLETION):
            job.finish([await self._run(self._direct, kind, raw)])
            return
        prompts, generated = await job.read_msgpack(PROMPTS), await job.read_msgpack(GENERATED)
        if job.envelope.streams and job.outlet is not None:
            grown = await self._run(self._grow_from_all, job.envelope, raw, prompts, generated)
            await job.outlet.send_piece(job.envelope, grown)
        if job.envelope.run is None:
            job.finish([await self._run(self._coupled, kind, raw, prompts, generated)])

    async def take_tokens(self, tokens: TokensRecord) -> tuple[ReplyTo, StreamPiece] | None:
        """What a stream has grown by and who waits for it; None where the stream is not known."""
        grown: tuple[ReplyTo, StreamPiece] | None = await self._run(self._grow, tokens)
        return grown

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def _open(self) -> TextModel:
        directory = read_model(self._settings)
        return open_text_model(
            self._settings,
            directory,
            self._limits,
            self._response_role,
            self._tokenizer,
            self._template_kwargs,
            self._stop_scope,
        )

    def _direct(self, kind: Kind, raw: bytes) -> bytes:
        """The derender endpoints and `/detokenize`: all is in the body."""
        model = self._ready()
        request = parse_body(kind, raw, self._limits)
        try:
            return answer_bytes(_answer(request, model, self._kept))
        except (ValueError, OverflowError) as error:
            raise bad_request(str(error)) from error

    def _coupled(self, kind: Kind, raw: bytes, prompts: Parts, generated: Parts) -> bytes:
        """The end of a request that went through the other stages."""
        model = self._ready()
        request = parse_body(kind, raw, self._limits)
        generations = read_generations(prompts, generated)
        answer: BaseModel
        if isinstance(request, ChatCompletionRequest):
            answer = chat_answer(request, generations[0], model)
        elif isinstance(request, CompletionRequest):
            answer = completion_answer(request, generations, model)
        else:
            raise DecodeError(f"a body of {type(request).__name__} for {kind}")
        return answer_bytes(answer, without=NOT_COUPLED)

    def _grow_from_all(
        self, envelope: Envelope, raw: bytes, prompts: Parts, generated: Parts
    ) -> StreamPiece:
        """What is new among all tokens so far; all of it where the stream was not known."""
        stream = self._streams.get(envelope.id, envelope.run)
        is_last = envelope.run is None
        if is_last:  # the end of whichever execution came here last
            stream = self._streams.pop(envelope.id)
        deltas = None if stream is None else stream.grow(all_tokens(generated))
        if deltas is not None:
            return StreamPiece(deltas=deltas)
        stream = self._open_stream(envelope, raw, prompts, generated)
        if not is_last:
            self._streams.keep(envelope.id, stream)
        return StreamPiece(head=stream.head, deltas=stream.grow(all_tokens(generated)) or [])

    def _open_stream(
        self, envelope: Envelope, raw: bytes, prompts: Parts, generated: Parts
    ) -> RequestStream:
        request = parse_body(envelope.kind, raw, self._limits)
        assert isinstance(request, ChatCompletionRequest | CompletionRequest), "kinds that stream"
        generations = read_generations(prompts, generated)
        return RequestStream(envelope, request, generations, self._ready())

    def _grow(self, tokens: TokensRecord) -> tuple[ReplyTo, StreamPiece] | None:
        stream = self._streams.get(tokens.id, tokens.run)
        deltas = None if stream is None else stream.grow(tokens.choices)
        if stream is None or not deltas:
            return None
        return stream.reply, StreamPiece(deltas=deltas)

    def _ready(self) -> TextModel:
        if self._model is None:
            raise RuntimeError("the stage has not been started")
        return self._model


def _answer(request: BaseModel, model: TextModel, kept: KeptStreams) -> BaseModel:
    match request:
        case DetokenizeRequest():
            check_model(request.model, model.limits)
            return DetokenizeResponse(prompt=_detokenized(request.tokens, model))
        case DerenderChatRequest():
            check_derender(request, model.limits, has_parser=model.parsers.is_any)
            return derender_chat(request, model)
        case DerenderCompletionRequest():
            check_derender(request, model.limits, has_parser=model.parsers.is_any)
            return derender_completion(request, model)
        case DerenderChatStreamRequest():
            check_derender(request, model.limits, has_parser=model.parsers.is_any)
            return derender_chat_chunk(request, model, kept)
        case DerenderCompletionStreamRequest():
            check_derender(request, model.limits, has_parser=model.parsers.is_any)
            return derender_completion_chunk(request, model)
    raise DecodeError(f"derender does not answer {type(request).__name__}")


def _detokenized(tokens: Sequence[int], model: TextModel) -> str:
    size = model.tokenizer.vocab_size
    return model.tokenizer.decode([token for token in tokens if token < size])
