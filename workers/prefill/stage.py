"""Continues prompts: embeddings from the encoder cache, tokens from the engine, an answer.

What may travel here was the coordinator's decision; that it fits is checked again. Knows no tensor
library.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import orjson
from prometheus_client import CollectorRegistry, Counter

from runtime.settings import EngineSettings, ModelSettings
from runtime.stage import Job
from runtime.storage import EncoderCache
from schemas.ec import descriptors, seed_form
from schemas.envelope import GENERATED, PROMPTS, Envelope
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.routes import Kind, Stop
from workers.generated import Prompt, items_of, num_rendered_items
from workers.models.engine.facts import ModelFacts
from workers.models.engine.protocol import (
    Encoder,
    Engine,
    Generation,
    GenerationRequest,
    PlacedItem,
)
from workers.models.engine.tokens import TextSource
from workers.prefill.answers import response_of
from workers.prefill.embeddings import EmbeddingSource
from workers.prefill.prompts import Work, describe, read_work
from workers.prefill.streaming import Nobody, Receiver, Stream, ToCaller, ToDerender
from workers.text.reasoning import PromptReasoning

logger = logging.getLogger(__name__)
T = TypeVar("T")


class PrefillStage:
    """One per process. Safe to repeat: without a seed of the caller, the envelope's id decides."""

    stop = Stop.PREFILL

    def __init__(
        self,
        model: ModelSettings,
        settings: EngineSettings,
        engine: Engine,
        cache: EncoderCache,
        *,
        facts: ModelFacts,
        limits: ModelLimits,
        source: TextSource | None = None,
        encoder: Encoder | None = None,
        reasoning: PromptReasoning | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """`source`: for strings, where the directory has a tokenizer. `encoder`: for payloads.
        `reasoning`: where the model thinks before it answers.
        """
        self._mismatched = Counter(
            "tokenfleet_items_mismatched",
            "Prompts whose items at prefill were not those that were rendered",
            registry=registry,
        )
        self._reasoning = reasoning
        self._params_format = settings.ec_params_format
        self._interval_s = settings.stream_interval_ms / 1000
        self._engine = engine
        self._encoder = encoder
        self._facts = facts
        self._limits = limits
        self._source = source
        self._embeddings = EmbeddingSource(facts, cache, encoder)

    async def start(self) -> None:
        await self._engine.start()
        if self._encoder is not None:
            await self._encoder.start()

    async def process(self, job: Job) -> None:
        works = self._read(await job.read_msgpack(PROMPTS), job.envelope)
        placed = await self._embeddings.place(job, works)
        stream = Stream(self._receiver(job, works), works, self._interval_s)
        async with stream.running():
            await _all(
                self._generate(work, items, job.envelope, stream)
                for work, items in zip(works, placed, strict=True)
            )
        if job.envelope.next_stop is Stop.REPLY:
            await stream.flush()
        generations = [stream.generation(work.index) for work in works]
        self._hand_on(job, await self._answers(works, generations, job.envelope))

    async def close(self) -> None:
        await self._engine.close()
        if self._encoder is not None:
            await self._encoder.close()

    def _read(self, prompts: list[Prompt], envelope: Envelope) -> list[Work]:
        works = []
        for index, prompt in enumerate(prompts):
            items = items_of(envelope.items, index)
            work = read_work(index, prompt, items, envelope.kind, self._facts, self._limits)
            self._check_text(work)
            self._check_items(work)
            works.append(work)
        return works

    def _check_text(self, work: Work) -> None:
        """Refuse what needs strings where there is no tokenizer, or the end of reasoning."""
        mode = work.request.output_mode
        needs = work.sampling.stop or work.sampling.bad_words or work.sampling.structured
        if self._source is None and (needs or mode != "tokens"):
            raise ApiError(f"output_mode={mode!r} requires a tokenizer, and this model has none.")

    def _check_items(self, work: Work) -> None:
        """No image is ever dropped silently: as many items arrive as were rendered."""
        rendered = num_rendered_items(work.prompt)
        if rendered == len(work.items):
            return
        self._mismatched.inc()
        items = [describe(item) for item in work.items]
        logger.error("items_mismatched", extra={"rendered": rendered, "items": items})
        raise ApiError(
            f"{len(work.items)} of {rendered} multimodal items of the prompt arrived.",
            status=500,
            type="InternalServerError",
        )

    def _receiver(self, job: Job, works: Sequence[Work]) -> Receiver:
        """Who is told while the answer grows."""
        if not job.envelope.streams or job.outlet is None:
            return Nobody()
        if job.envelope.next_stop is Stop.REPLY:
            return ToCaller(job, job.outlet, self._limits.served_name, self._source)
        answers = partial(self._answers, works, envelope=job.envelope)
        return ToDerender(job, job.outlet, answers)

    async def _answers(
        self, works: Sequence[Work], generations: Sequence[Generation], envelope: Envelope
    ) -> list[dict[str, Any]]:
        """Generate responses. On threads: strings for many candidates take a while."""
        answer = partial(
            response_of,
            envelope=envelope,
            served_name=self._limits.served_name,
            source=self._source,
            ec_transfer_params=self._told_params(envelope),
        )
        pairs = zip(works, generations, strict=True)
        return [await asyncio.to_thread(answer, *pair) for pair in pairs]

    async def _generate(
        self, work: Work, items: tuple[PlacedItem, ...], envelope: Envelope, stream: Stream
    ) -> None:
        progress = self._engine.generate(
            GenerationRequest(
                request_id=f"{envelope.id}/{work.index}",
                token_ids=tuple(work.token_ids),
                items=items,
                sampling=work.sampling,
                max_tokens=work.max_tokens,
                seeds=work.seeds(envelope.id),
                deadline_ms=envelope.deadline_ms,
                constrained_after=self._constrained_after(work),
                wants_text=work.request.output_mode == "text",
            )
        )
        async with aclosing(progress):
            async for news in progress:
                stream.add(work.index, news)

    def _constrained_after(self, work: Work) -> frozenset[int]:
        """The ends of reasoning, where the answer begins with some."""
        if self._reasoning is None or work.sampling.structured is None:
            return frozenset()
        ended = work.request.reasoning_ended
        if ended is None:
            given = work.request.reasoning_parser_kwargs
            kwargs = given.chat_template_kwargs if given else {}
            ended = self._reasoning.has_ended(work.token_ids, kwargs)
        return frozenset() if ended else self._reasoning.end_ids

    def _told_params(self, envelope: Envelope) -> dict[str, Any] | None:
        """Of a generate request that ran encode too; vLLM tells them on an encode-only server."""
        ran_encode = Stop.ENCODE in envelope.route[: envelope.at]
        is_told = self._params_format == "seed" and envelope.kind is Kind.GENERATE and ran_encode
        if not is_told or not envelope.items:
            return None
        hashes = {item.mm_hash for item in envelope.items}
        known = descriptors(envelope.ec_transfer_params)
        return seed_form({mm_hash: d for mm_hash, d in known.items() if mm_hash in hashes})

    def _hand_on(self, job: Job, answers: list[dict[str, Any]]) -> None:
        if job.envelope.next_stop is Stop.REPLY:
            job.finish([orjson.dumps(answers[0], option=orjson.OPT_NON_STR_KEYS)])
        else:
            job.write_msgpack(GENERATED, answers)


async def _all(answers: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order; the first error stops the others and is raised as it is."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
