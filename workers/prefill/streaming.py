"""Hands on what a request's generations have grown by, while they grow.

The first token goes at once, then what has come within an interval goes together. To derender go
tokens, and from time to time all tokens so far, so that another worker can take over; a generate
request's go straight to its caller. Knows no engine at work.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.stage import Job, Outlet
from schemas.envelope import GENERATED
from schemas.records.derender import ChoiceTokens, TokensRecord
from schemas.records.reply import StreamDelta, StreamHead, StreamPiece, TextPart
from schemas.routes import Kind
from workers.generated import placeholders, request_id
from workers.models.engine.protocol import (
    Finish,
    Generation,
    GrowingGeneration,
    Progress,
    Row,
    TokenDelta,
)
from workers.models.engine.tokens import TextSource
from workers.prefill.answers import text_entries, token_entries
from workers.prefill.prompts import Work

WHOLE_EVERY_S = 2.0
"""Between two records with all tokens so far: what a successor of a derender worker waits for."""


@dataclass(slots=True)
class _News:
    """What one choice has grown by and nobody was told yet."""

    start: int
    token_ids: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None

    def add(self, delta: TokenDelta) -> None:
        self.token_ids += delta.token_ids
        self.rows += delta.logprobs
        self.text += delta.text
        self.finish = delta.finish


class Growth:
    """One prompt's generation: all of it, and what of it was not handed on."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.whole = GrowingGeneration(work.sampling.n)
        self._news: dict[int, _News] = {}

    def add(self, progress: Progress) -> None:
        for delta in progress.deltas:
            start = self.whole.num_tokens(delta.choice)
            self._news.setdefault(delta.choice, _News(start)).add(delta)
        self.whole.add(progress)

    def take(self) -> dict[int, _News]:
        """By choice; from now on it counts as handed on."""
        news, self._news = self._news, {}
        return news


class Receiver(Protocol):
    async def send(self, growths: Sequence[Growth]) -> None:
        """Hand on what is new, if anything is; return once it is acknowledged."""


class Nobody:
    """Of an answer that is wanted whole."""

    async def send(self, growths: Sequence[Growth]) -> None:
        for growth in growths:
            growth.take()


class Stream:
    """Collects progress and lets a receiver have it, at most once an interval."""

    def __init__(self, receiver: Receiver, works: Sequence[Work], interval_s: float) -> None:
        self._receiver = receiver
        self._growths = [Growth(work) for work in works]
        self._interval_s = interval_s
        self._has_news = asyncio.Event()
        self._is_over = asyncio.Event()
        self._failure: Exception | None = None

    def add(self, index: int, progress: Progress) -> None:
        """Raise what sending failed with: nobody would get the rest."""
        if self._failure is not None:
            raise self._failure
        self._growths[index].add(progress)
        self._has_news.set()

    def generation(self, index: int) -> Generation:
        return self._growths[index].whole.so_far()

    async def flush(self) -> None:
        """Hand on what is left once `running` is left."""
        await self._receiver.send(self._growths)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Send in the background; a send that is under way is waited for at the end."""
        sending = asyncio.create_task(self._run(), name="token-stream")
        try:
            yield
            self._is_over.set()
            self._has_news.set()
            await sending
        finally:
            sending.cancel()

    async def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                await self._has_news.wait()
                self._has_news.clear()
                if not self._is_over.is_set():
                    await self.flush()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_over.wait(), self._interval_s)
        except Exception as error:
            self._failure = error


class ToDerender:
    """Tokens for the worker that makes text of them."""

    def __init__(self, job: Job, outlet: Outlet, answers: "Answers") -> None:
        self._job = job
        self._outlet = outlet
        self._answers = answers
        self._run = uuid.uuid4().hex
        self._whole_at: float | None = None

    async def send(self, growths: Sequence[Growth]) -> None:
        taken = [growth.take() for growth in growths]
        if not any(taken):
            return
        now = time.monotonic()
        if self._whole_at is None or now - self._whole_at >= WHOLE_EVERY_S:
            self._whole_at = now
            await self._send_whole(growths)
            return
        choices = [
            _choice_tokens(prompt, choice, news, growths[prompt].work)
            for prompt, by_choice in enumerate(taken)
            for choice, news in by_choice.items()
        ]
        await self._outlet.send_tokens(
            TokensRecord(id=self._job.envelope.id, run=self._run, choices=choices)
        )

    async def _send_whole(self, growths: Sequence[Growth]) -> None:
        envelope = self._job.envelope.model_copy()
        envelope.parts, envelope.trace = dict(envelope.parts), list(envelope.trace)
        envelope.at += 1
        envelope.run = self._run
        copy = Job(envelope, self._job.blobs)
        generations = [growth.whole.so_far() for growth in growths]
        copy.write_msgpack(GENERATED, await self._answers(generations))
        await self._outlet.send_envelope(envelope)


class Answers(Protocol):
    async def __call__(self, generations: Sequence[Generation]) -> list[dict[str, Any]]:
        """Generate responses, one per prompt."""


def _choice_tokens(prompt: int, choice: int, news: _News, work: Work) -> ChoiceTokens:
    scored = work.sampling.logprobs is not None
    return ChoiceTokens(
        prompt=prompt,
        choice=choice,
        start=news.start,
        token_ids=news.token_ids,
        logprobs=token_entries(news.rows, work) if scored else None,
        finish_reason=news.finish and news.finish.reason,
        stop_reason=news.finish and news.finish.stop_reason,
    )


class ToCaller:
    """The stream of a generate request, which ends here."""

    def __init__(
        self, job: Job, outlet: Outlet, served_name: str, source: TextSource | None
    ) -> None:
        self._job = job
        self._outlet = outlet
        self._served_name = served_name
        self._source = source
        self._has_begun = False
        self._tokens: dict[int, list[int]] = {}
        self._num_characters: dict[int, int] = {}

    async def send(self, growths: Sequence[Growth]) -> None:
        (growth,) = growths
        taken = growth.take()
        if not taken:
            return
        deltas = [self._delta(choice, news, growth.work) for choice, news in taken.items()]
        head = None if self._has_begun else self._head(growth.work)
        self._has_begun = True
        await self._outlet.send_piece(self._job.envelope, StreamPiece(head=head, deltas=deltas))

    def _head(self, work: Work) -> StreamHead:
        options = work.request.stream_options
        wants_ids = bool(work.request.return_token_ids)
        return StreamHead(
            kind=Kind.GENERATE,
            id=request_id(work.prompt, self._job.envelope),
            model=self._served_name,
            created=int(time.time()),
            num_choices=work.sampling.n,
            prompt_tokens=len(work.token_ids),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(
                options and options.include_usage and options.continuous_usage_stats
            ),
            prompt_token_ids=[list(work.token_ids)] if wants_ids else None,
            mm_placeholders=placeholders(work.prompt) if wants_ids else None,
            output_mode="text" if work.request.output_mode == "text" else "tokens",
        )

    def _delta(self, choice: int, news: _News, work: Work) -> StreamDelta:
        before = self._tokens.setdefault(choice, [])
        delta = StreamDelta(
            choice=choice,
            start=news.start,
            token_ids=news.token_ids,
            parts=self._parts(choice, news.text) if work.request.output_mode == "text" else [],
            logprobs=self._logprobs(news, before, work),
            finish_reason=news.finish and news.finish.reason,
            stop_reason=news.finish and news.finish.stop_reason,
        )
        before += news.token_ids
        return delta

    def _parts(self, choice: int, text: str) -> list[TextPart]:
        start = self._num_characters.get(choice, 0)
        self._num_characters[choice] = start + len(text)
        return [TextPart(start=start, text=text)] if text else []

    def _logprobs(
        self, news: _News, before: Sequence[int], work: Work
    ) -> list[dict[str, Any]] | None:
        if work.sampling.logprobs is None:
            return None
        if work.request.output_mode == "text" and self._source is not None:
            return text_entries(news.rows, news.token_ids, before, work, self._source)
        return token_entries(news.rows, work)
