"""The render stage: requests in text and media become token ids, sampling parameters and items.

Joins the parts of this package; each rule lives in the module that is named after it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from runtime.cores import num_cores
from runtime.model_dir import read_model
from runtime.request_body import RequestBodies
from runtime.settings import ModelSettings, RenderSettings
from runtime.shares import SharedBytes
from runtime.stage import Job
from schemas.anthropic import MessagesRequest
from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.envelope import PROMPTS, REQUEST, BlobRef, Item
from schemas.generate import GenerateRequest
from schemas.limits import ModelLimits, check_model
from schemas.openai_responses import ResponsesRequest
from schemas.parts import MEDIA_KEYS
from schemas.routes import Kind, Stop
from schemas.tokenize import TokenizeChatRequest, TokenizeCompletionRequest
from workers.render.answers import Rendered, write_body, write_expanded, write_parts
from workers.render.apart import ThreadsApart
from workers.render.media import Media, MediaItem, MediaPart, expand
from workers.render.prompts import Prompt, check_placeholders, truncate_expanded
from workers.render.renderer import Renderer
from workers.render.requests import ChatInput
from workers.text.tokenizer import Tokenizer

T = TypeVar("T")

# Bodies up to this size render in a millisecond: a thread would take a tenth of one for itself.
_INLINE_BYTES = 4096
# Tokenized in a second or more; others must not wait for them.
_LARGE_BYTES = 1024 * 1024
# Of all requests in hand that are too large to travel in their records; the oldest may exceed it.
_MAX_BODIES_BYTES = 256 * 1024 * 1024
_MEDIA_KEYS = frozenset(MEDIA_KEYS)
_BARE = frozenset(
    {Kind.CHAT_RENDER, Kind.COMPLETION_RENDER, Kind.RESPONSES_RENDER, Kind.MESSAGES_RENDER}
)


class RenderStage:
    """Takes chats, completions, Responses and Messages, bare or on their way, and /tokenize."""

    stop = Stop.RENDER

    def __init__(
        self,
        model: ModelSettings,
        render: RenderSettings,
        media: Media | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        limits: ModelLimits | None = None,
        bodies: RequestBodies | None = None,
    ) -> None:
        """The last three are made from the settings where they are not at hand yet."""
        self._model = model
        self._render = render
        self._media = media
        self._tokenizer = tokenizer
        self._limits = limits
        self._bodies = bodies
        self._bodies_memory = SharedBytes(_MAX_BODIES_BYTES)
        self._threads: ThreadPoolExecutor | None = None
        self._templates: ThreadsApart | None = None
        self._large: ThreadsApart | None = None
        self._renderer: Renderer | None = None

    async def start(self) -> None:
        count = self._render.render_threads or num_cores()
        self._threads = ThreadPoolExecutor(count, "render")
        self._templates = ThreadsApart(2, waiting=2, name="templates")
        self._large = ThreadsApart(1, waiting=1, name="large-texts")
        self._renderer = await self._in_thread(self._build)
        self._bodies = self._bodies or RequestBodies(self._renderer.limits)

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        for apart in (self._templates, self._large):
            if apart is not None:
                apart.close()
        if self._renderer is not None:
            self._renderer.close()

    async def process(self, job: Job) -> None:
        """Large bodies wait for their share of the memory; a request may be here for minutes, while
        its media are fetched."""
        part = job.envelope.parts.get(REQUEST)
        size = part.size if isinstance(part, BlobRef) else 0
        async with self._bodies_memory.claim().holding(size):
            await self._process(job)

    async def _process(self, job: Job) -> None:
        renderer = self._running
        assert self._bodies is not None, "the stage is not started"
        request, raw = await self._bodies.read(job)
        check_model(getattr(request, "model", None), renderer.limits)
        size = len(raw)
        if isinstance(request, ChatCompletionRequest | TokenizeChatRequest):
            size -= _media_size(request.messages)
        if isinstance(request, ChatCompletionRequest):
            given = await self._run(size, renderer.chat_input, request)
            await self._chat(job, given, _id(job, "chatcmpl-", request.request_id), size)
        elif isinstance(request, CompletionRequest):
            await self._completion(job, request, size)
        elif isinstance(request, ResponsesRequest):
            given = await self._run(size, renderer.responses_input, request)
            size = len(raw) - _media_size(given.messages)
            await self._chat(job, given, request.request_id, size)
        elif isinstance(request, MessagesRequest):
            chat = await self._run(size, renderer.messages_request, request)
            size = len(raw) - _media_size(chat.messages)
            given = await self._run(size, renderer.chat_input, chat)
            await self._chat(job, given, _id(job, "chatcmpl-", chat.request_id), size)
        elif isinstance(request, GenerateRequest):
            await self._raw_media(job, request)
        elif isinstance(request, TokenizeCompletionRequest | TokenizeChatRequest):
            await self._tokenize(job, request, size)

    # --- the kinds

    async def _chat(self, job: Job, given: ChatInput, request_id: str, size: int) -> None:
        renderer = self._running
        chat = await self._run_chat(size, renderer.chat_prompt, given)
        prompt = chat.prompt
        items: list[Item] = []
        media: list[MediaItem] = []
        if chat.parts:
            prompt, items, media = await self._with_media(job, given, prompt, chat.parts)
        rendered = await self._run(size, renderer.finish_chat, given, prompt, request_id, items)
        await self._answer(job, [replace(rendered, media=media)], given.request.mm_payload)

    async def _completion(self, job: Job, request: CompletionRequest, size: int) -> None:
        renderer = self._running
        prompts = await self._run_text(size, renderer.completion_prompts, request)
        base = _id(job, "cmpl-", request.request_id)
        ids = [base] if len(prompts) == 1 else [f"{base}-{i}" for i in range(len(prompts))]
        rendered = await self._run(size, renderer.finish_completion, request, prompts, ids)
        await self._answer(job, rendered, request.mm_payload)

    async def _tokenize(
        self, job: Job, request: TokenizeCompletionRequest | TokenizeChatRequest, size: int
    ) -> None:
        renderer = self._running
        if isinstance(request, TokenizeChatRequest):
            given = await self._run(size, renderer.tokenize_input, request)
            ids = await self._run_chat(size, renderer.chat_ids, given)
        else:
            special = request.add_special_tokens
            ids = await self._run_text(size, renderer.encode, request.prompt, special)
        with_strings = bool(request.return_token_strs)
        job.finish([await self._run(size, renderer.finish_tokenize, ids, with_strings)])

    async def _answer(self, job: Job, rendered: Sequence[Rendered], payload: str) -> None:
        kind = job.envelope.kind
        if kind in _BARE:
            as_list = kind is Kind.COMPLETION_RENDER
            await write_body(job, rendered, as_list=as_list, with_tensors=payload == "tensors")
        else:
            write_parts(job, rendered, PROMPTS)

    # --- media

    async def _with_media(
        self, job: Job, given: ChatInput, prompt: Prompt, parts: Sequence[MediaPart]
    ) -> tuple[Prompt, list[Item], list[MediaItem]]:
        assert self._media is not None  # without it, parts are refused while they are read
        check_placeholders(prompt, parts, self._media.locate, given.rules)
        ids, items, loaded = await self._place(
            job,
            prompt.ids,
            parts,
            want_tensors=job.envelope.kind not in _BARE or given.request.mm_payload == "tensors",
            mm_processor_kwargs=given.mm_processor_kwargs,
            media_io_kwargs=given.media_io_kwargs,
            cache_salt=given.request.cache_salt,
        )
        side = self._running.tokenizer.truncation_side
        ids, items = truncate_expanded(ids, items, given.rules, side)
        return replace(prompt, ids=ids, offsets=None), items, loaded

    async def _place(
        self,
        job: Job,
        prompt_ids: Sequence[int],
        parts: Sequence[MediaPart],
        *,
        want_tensors: bool,
        cache_salt: str | None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        media_io_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], list[Item], list[MediaItem]]:
        """Process the media and put their tokens where their placeholders are."""
        assert self._media is not None  # without it, parts are refused while they are read
        loaded = await self._media.load(
            parts,
            mm_processor_kwargs=mm_processor_kwargs,
            media_io_kwargs=media_io_kwargs,
            tenant=job.envelope.caller.tenant,
            cache_salt=cache_salt,
            want_tensors=want_tensors,
            # In a heal the cache has just proved to be of no use.
            skip_encoded=job.envelope.kind not in _BARE and not job.envelope.heals,
        )
        spans = self._media.locate(prompt_ids, parts)
        ids, ranges = self._media.settle(*expand(prompt_ids, spans, loaded))
        items = [
            Item(
                modality=item.modality,
                mm_hash=item.mm_hash,
                offset=offset,
                length=length,
                embeds=item.embeds,
                encoded=item.encoded,
                entry=item.entry,
                by_caller=item.by_caller,
            )
            for item, (offset, length) in zip(loaded, ranges, strict=True)
        ]
        return ids, items, loaded

    async def _raw_media(self, job: Job, request: GenerateRequest) -> None:
        """A generate request that brings media for the placeholders among its tokens (03 §4.4)."""
        parts = self._running.raw_media_parts(request.raw_media())
        ids, items, media = await self._place(
            job, request.token_ids, parts, want_tensors=True, cache_salt=request.cache_salt
        )
        await write_expanded(job, ids, items, media)

    # --- running

    def _build(self) -> Renderer:
        directory = read_model(self._model)
        limits = self._limits or ModelLimits(
            max_model_len=directory.max_model_len,
            vocab_size=directory.vocab_size,
            served_names=directory.served_names,
            max_logprobs=self._model.max_logprobs,
            max_num_seqs=self._model.max_num_seqs,
        )
        tokenizer = self._tokenizer or Tokenizer.from_directory(directory.path)
        return Renderer(self._model, self._render, directory, limits, tokenizer, self._media)

    @property
    def _running(self) -> Renderer:
        assert self._renderer is not None, "the stage is not started"
        return self._renderer

    async def _run_chat(self, size: int, call: Callable[[ChatInput], T], given: ChatInput) -> T:
        if self._running.brings_template(given):
            assert self._templates is not None, "the stage is not started"
            return await self._templates.run(call, given)
        return await self._run_text(size, call, given)

    async def _run_text(self, size: int, call: Callable[..., T], *args: object) -> T:
        """What takes as long as its text is."""
        if size <= _INLINE_BYTES:
            return call(*args)
        if size <= _LARGE_BYTES:
            return await self._in_thread(call, *args)
        assert self._large is not None, "the stage is not started"
        return await self._large.run(call, *args)

    async def _run(self, size: int, call: Callable[..., T], *args: object) -> T:
        """What goes with a text and takes a tenth of its time."""
        is_short = size <= 8 * _INLINE_BYTES
        return call(*args) if is_short else await self._in_thread(call, *args)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def _media_size(messages: Iterable[Mapping[str, Any]]) -> int:
    """Characters of a chat that are no text: URLs and payloads, which hold whole files."""
    return sum(
        len(value)
        for message in messages
        if isinstance(parts := message.get("content"), list)
        for part in parts
        if isinstance(part, dict)
        for key in part.keys() & _MEDIA_KEYS
        if isinstance(value := _payload(part[key]), str)
    )


def _payload(value: object) -> object:
    return value.get("url", value.get("data")) if isinstance(value, dict) else value


def _id(job: Job, prefix: str, own: str) -> str:
    given = job.envelope.caller.request_id
    return prefix + (own if given is None else given)
