"""Answers that grow: tokens in as prefill makes them, text with its place in the whole out.

One `RequestStream` holds what a request's next tokens depend on, so that a token costs the same
wherever it stands. It is made anew from all tokens so far whenever it is not at hand.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from schemas.chat import ChatCompletionRequest
from schemas.completion import CompletionRequest
from schemas.envelope import Envelope, ReplyTo
from schemas.generate import GenerateLogprobs
from schemas.records.derender import ChoiceTokens
from schemas.records.reply import StreamDelta, StreamHead, TextPart
from schemas.responses import CompletionLogprobs
from workers.derender.asked import wants_ids
from workers.derender.choice import ChoiceStream, Grown, Part
from workers.derender.coupled import (
    Generation,
    echoed_logprobs_of,
    is_prompt_only,
    logprob_style,
    prompt_echo,
    role_of,
    stream_decoder,
)
from workers.derender.echo import last_content
from workers.derender.logprobs import (
    LogprobStyle,
    chat_logprobs,
    completion_logprobs,
    context_after,
    end_offset,
)
from workers.derender.model import TextModel
from workers.derender.outputs import Ending, StopReason, find_stop, stop_rules, without_stop_token
from workers.derender.parsing import hides_metadata

MAX_STREAMS = 4096
"""Requests whose state one worker keeps; the one that grew longest ago is dropped first."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Request = ChatCompletionRequest | CompletionRequest
Entry = dict[str, Any]


class ChoiceText(Protocol):
    """One choice's tokens into text, piece by piece."""

    def push(
        self, token_ids: Sequence[int], finish_reason: str | None, stop_reason: StopReason
    ) -> Grown:
        """What is certain after these tokens: new ones only, a finish reason with the last."""


class PlainText:
    """A completion's: all text is content. What may begin a stop string waits."""

    def __init__(self, generation: Generation, model: TextModel, *, echo: str = "") -> None:
        """`echo` goes before the text and is never searched for stop strings."""
        self._rules = stop_rules(generation.sampling)
        self._eos = model.eos
        self._decoder = stream_decoder(generation, model)
        self._text = echo
        self._searched_from = len(echo)
        self._released = 0
        self._num_tokens = 0
        self._held = max((len(stop) for stop in self._rules.strings), default=1) - 1

    def push(
        self, token_ids: Sequence[int], finish_reason: str | None, stop_reason: StopReason
    ) -> Grown:
        ending = Ending(token_ids, finish_reason, stop_reason)
        ids, reason = without_stop_token(ending, self._rules, self._eos)
        early = max(self._rules.min_tokens - self._num_tokens, 0)
        self._num_tokens += len(token_ids)
        self._feed(ids[:early], is_early=True)
        self._feed(ids[early:], is_early=False)
        if finish_reason is None:
            parts = self._release(max(len(self._text) - self._held, self._released))
            return Grown(parts, num_tokens=self._num_tokens)
        reason = self._cut(ending, reason)
        return Grown(self._release(len(self._text)), finish_reason, reason, self._num_tokens)

    def _feed(self, ids: Sequence[int], *, is_early: bool) -> None:
        self._text += self._decoder.feed(ids)
        if is_early:
            self._searched_from = len(self._text)

    def _cut(self, ending: Ending, reason: StopReason) -> StopReason:
        if not ending.is_stop or isinstance(ending.stop_reason, int):
            return reason
        told = ending.stop_reason
        stops = self._rules.strings if told is None else (told,)
        found = find_stop(self._text, len(self._text) - self._searched_from, stops)
        if found is None:
            return reason
        start, stop = found
        self._text = self._text[: start + (len(stop) if self._rules.is_included else 0)]
        return stop

    def _release(self, end: int) -> list[Part]:
        start, self._released = self._released, max(end, self._released)
        text = self._text[start:end]
        return [Part("content", start, text)] if text else []


class _ChoiceStream:
    """One choice of one prompt: its text, and the log-probabilities beside it."""

    def __init__(
        self,
        index: int,
        text: ChoiceText,
        model: TextModel,
        style: LogprobStyle | None,
        *,
        echo: CompletionLogprobs | None,
        shows_output: bool,
    ) -> None:
        """`style`: None where no log-probabilities are asked for. `echo`: those of the prompt."""
        self._index = index
        self._text = text
        self._model = model
        self._style = style
        self._echo = echo
        self._shows_output = shows_output
        self._context: list[int] = []
        self._offset = 0
        self._num_told = 0
        self._is_over = False
        self.token_ids: list[int] = []
        """That have come, whether or not they are part of the answer."""

    def push(self, new: ChoiceTokens) -> StreamDelta | None:
        """None where the choice has ended before these tokens: a stop string did it."""
        self.token_ids += new.token_ids
        if self._is_over:
            return None
        grown = self._text.push(new.token_ids, new.finish_reason, new.stop_reason)
        count = grown.num_tokens - self._num_told
        new = new.model_copy(
            update={
                "token_ids": new.token_ids[:count],
                "logprobs": new.logprobs and new.logprobs[:count],
            }
        )
        delta = StreamDelta(
            choice=self._index,
            start=self._num_told,
            token_ids=new.token_ids,
            parts=[_text_part(part) for part in grown.parts],
            logprobs=None if self._style is None else self._logprobs(new, self._style),
            reasoning_tokens=grown.reasoning_tokens,
            finish_reason=grown.finish_reason,
            stop_reason=grown.stop_reason if grown.finish_reason is not None else None,
        )
        self._num_told = grown.num_tokens
        self._is_over = grown.finish_reason is not None
        self._context = context_after(self._context, new.token_ids)
        return delta

    def _logprobs(self, new: ChoiceTokens, style: LogprobStyle) -> list[Entry]:
        given = GenerateLogprobs.model_validate({"content": new.logprobs or []})
        chat = chat_logprobs(given, self._model.strings, style, self._context)
        if self._echo is None:
            return [entry.model_dump() for entry in chat.content or ()]
        entries = list(_rows(self._take_echo()))
        if self._shows_output:
            columns = completion_logprobs(chat, given, self._offset)
            self._offset = end_offset(columns) or self._offset
            entries += _rows(columns)
        return entries

    def _take_echo(self) -> CompletionLogprobs:
        echo, self._echo = self._echo or CompletionLogprobs(), CompletionLogprobs()
        self._offset = end_offset(echo) or self._offset
        return echo


def _text_part(part: Part) -> TextPart:
    """JSON in an output may escape half a surrogate pair, which no record can carry."""
    fields = asdict(part)
    for name in ("text", "tool_name"):
        if fields[name]:
            fields[name] = _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", fields[name])
    return TextPart(**fields)


def _rows(columns: CompletionLogprobs) -> Iterator[Entry]:
    table = columns.model_dump()
    for values in zip(*table.values(), strict=True):
        yield dict(zip(table, values, strict=True))


class RequestStream:
    """One request's growing answer in one worker."""

    def __init__(
        self,
        envelope: Envelope,
        request: Request,
        generations: Sequence[Generation],
        model: TextModel,
    ) -> None:
        self.run = envelope.run
        self.reply: ReplyTo = envelope.reply
        self.head = _head(envelope, request, generations, model)
        self._choices = dict(_choices(request, generations, model))

    def grow(self, choices: Sequence[ChoiceTokens]) -> list[StreamDelta] | None:
        """What these tokens add, those that are known already left out.

        None where tokens before them are missing, which the next record with all of them mends, or
        where those that are known were others: another execution of prefill made these.
        """
        deltas = []
        for given in choices:
            stream = self._choices.get((given.prompt, given.choice))
            if stream is None or not _continues(stream.token_ids, given):
                return None
            new = _unknown(given, len(stream.token_ids))
            if new.token_ids or new.finish_reason is not None:
                delta = stream.push(new)
                deltas += [] if delta is None else [delta]
        return deltas


def _continues(known: Sequence[int], given: ChoiceTokens) -> bool:
    """Whether tokens join on to those that are known, or repeat them."""
    repeated = known[given.start : given.start + len(given.token_ids)]
    return given.start <= len(known) and given.token_ids[: len(repeated)] == repeated


def _unknown(given: ChoiceTokens, num_known: int) -> ChoiceTokens:
    skip = num_known - given.start
    if skip <= 0:
        return given
    return given.model_copy(
        update={
            "start": num_known,
            "token_ids": given.token_ids[skip:],
            "logprobs": given.logprobs and given.logprobs[skip:],
        }
    )


def _choices(
    request: Request, generations: Sequence[Generation], model: TextModel
) -> Iterator[tuple[tuple[int, int], _ChoiceStream]]:
    """By prompt and choice, in the order of the answer."""
    index = 0
    for prompt, generation in enumerate(generations):
        for choice in range(len(generation.response.choices)):
            yield (prompt, choice), _choice(index, request, generation, model)
            index += 1


def _choice(
    index: int, request: Request, generation: Generation, model: TextModel
) -> _ChoiceStream:
    is_scored = (
        bool(request.logprobs)
        if isinstance(request, ChatCompletionRequest)
        else (request.logprobs is not None)
    )
    style = logprob_style(request) if is_scored else None
    if isinstance(request, ChatCompletionRequest):
        chat = ChoiceStream(
            request,
            generation.prompt_ids,
            model,
            request_id=generation.request_id,
            index=index,
            rules=stop_rules(generation.sampling),
        )
        style = None if chat.hides_metadata else style
        return _ChoiceStream(index, chat, model, style, echo=None, shows_output=True)
    shows_output = not is_prompt_only(request)
    text = PlainText(generation, model, echo=prompt_echo(request, generation, model))
    echo = echoed_logprobs_of(request, generation, model, logprob_style(request))
    return _ChoiceStream(index, text, model, style, echo=echo, shows_output=shows_output)


def _head(
    envelope: Envelope, request: Request, generations: Sequence[Generation], model: TextModel
) -> StreamHead:
    options = request.stream_options
    includes_usage = bool(options and options.include_usage)
    first = generations[0]
    head = StreamHead(
        kind=envelope.kind,
        id=first.request_id if len(generations) == 1 else first.request_id.removesuffix("-0"),
        model=model.limits.served_name,
        created=int(time.time()),
        num_choices=sum(len(generation.response.choices) for generation in generations),
        prompt_tokens=sum(len(generation.prompt_ids) for generation in generations),
        system_fingerprint=model.fingerprint,
        include_usage=includes_usage,
        continuous_usage=bool(includes_usage and options and options.continuous_usage_stats),
        counts_reasoning=model.parsers.reasoning is not None,
        wants_ids=wants_ids(request),
    )
    if head.wants_ids:
        head.prompt_token_ids = [list(generation.prompt_ids) for generation in generations]
    if isinstance(request, ChatCompletionRequest):
        head.role = role_of(request, model)
        head.echo = last_content(request.messages, head.role) if request.echo else None
        head.wants_ids = head.wants_ids and not hides_metadata(request, model)
        head.prompt_text = first.prompt_text if request.return_prompt_text else None
    return head


def all_tokens(generated: Sequence[Mapping[str, Any]]) -> list[ChoiceTokens]:
    """Every token that a `generated` part holds."""
    return [
        ChoiceTokens(
            prompt=prompt,
            choice=choice["index"],
            start=0,
            token_ids=choice["token_ids"],
            logprobs=(choice.get("logprobs") or {}).get("content"),
            finish_reason=choice.get("finish_reason"),
            stop_reason=choice.get("stop_reason"),
        )
        for prompt, response in enumerate(generated)
        for choice in response["choices"]
    ]


class Streams:
    """The streams that one worker knows, by request id."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self._limit = limit
        self._streams: OrderedDict[str, RequestStream] = OrderedDict()

    def get(self, request_id: str, run: str | None) -> RequestStream | None:
        """Of that very execution of prefill: another one may have other tokens."""
        stream = self._streams.get(request_id)
        if stream is None or stream.run != run:
            return None
        self._streams.move_to_end(request_id)
        return stream

    def keep(self, request_id: str, stream: RequestStream) -> None:
        self._streams[request_id] = stream
        self._streams.move_to_end(request_id)
        if len(self._streams) > self._limit:
            self._streams.popitem(last=False)

    def pop(self, request_id: str) -> RequestStream | None:
        return self._streams.pop(request_id, None)
