"""One choice of a chat as its tokens come: reasoning, content and calls with their places.

What is given out is never taken back and does not depend on how tokens are dealt to pushes, so a
worker that takes over pushes all tokens so far into a new stream and forwards what lies beyond the
places that were sent. The whole answer is the sum of the pushes. Costs the same for every token.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.chat import ChatCompletionRequest
from workers.derender.model import TextModel
from workers.derender.outputs import (
    Ending,
    StopReason,
    StopRules,
    stop_rules,
    without_stop_token,
)
from workers.derender.parsing import (
    call_id,
    chat_finish_reason,
    hides_metadata,
    message_reader,
    parse_options,
)
from workers.derender.stopping import StopStrings
from workers.text.detokenizer import StreamDecoder
from workers.text.parsers.base import Channel, Delta, Token, merged
from workers.text.parsers.message import MessageStream


@dataclass(frozen=True, slots=True)
class Part:
    """Text that one channel has grown by, and its place in that channel."""

    channel: Channel
    start: int
    """Characters of the channel before these."""
    text: str = ""
    tool: int = 0
    """Position of the call; its text is arguments."""
    tool_id: str | None = None
    tool_name: str | None = None
    """Both come with the first part of a call."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What a push made certain."""

    parts: Sequence[Part] = ()
    finish_reason: str | None = None
    """OpenAI's, once the choice has ended."""
    stop_reason: StopReason = None
    num_tokens: int = 0
    """Of the choice so far; a stop string ends it at the token that completed the string."""
    reasoning_tokens: int = 0


class ChoiceStream:
    """Mutable: one per choice. Build it anew and push all tokens to take over another's."""

    def __init__(
        self,
        request: ChatCompletionRequest,
        prompt_ids: Sequence[int],
        model: TextModel,
        *,
        request_id: str,
        index: int = 0,
        rules: StopRules | None = None,
    ) -> None:
        """`request_id`: of the answer, which ids of calls are made of.

        `rules`: of the sampling parameters that generation ran with; default: the request's.
        Raise ApiError 501 for a parser that nobody reads.
        """
        self._request, self._model = request, model
        self._request_id, self._index = request_id, index
        self._rules = rules or stop_rules(request)
        self._messages = _messages(request, prompt_ids, model)
        self._tokens = TokenTexts(request, prompt_ids, model)
        stops = StopStrings(self._rules.strings, is_included=self._rules.is_included)
        is_inside = self._messages is not None and model.stop_scope == "content"
        self._content_stops = stops if is_inside else StopStrings(())
        self._text_stops = StopStrings(()) if is_inside else stops
        self._waiting: deque[Token] = deque()
        self._num_waiting = 0
        self._places: dict[tuple[Channel, int], int] = {}
        self._num_tokens = 0
        self._finish_reason: str | None = None
        self._stop_reason: StopReason = None
        self.hides_metadata = hides_metadata(request, model)
        """Log-probabilities and token ids of this choice must not be shown."""

    @property
    def is_over(self) -> bool:
        """The choice has ended; where a stop string did it, generation should, too."""
        return self._finish_reason is not None

    @property
    def has_stopped(self) -> bool:
        """A stop string was found here: whoever generates does not know yet."""
        return self._found is not None

    @property
    def places(self) -> dict[tuple[Channel, int], int]:
        """Characters given out, by channel and position of the call."""
        return dict(self._places)

    def push(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None = None,
        stop_reason: StopReason = None,
    ) -> Grown:
        """New tokens only, and with the last of them why generation ended. Nothing once over."""
        if self.is_over:
            return self._grown([])
        ending = Ending(token_ids, finish_reason, stop_reason)
        kept, reason = without_stop_token(ending, self._rules, self._model.eos)
        deltas = self._read(kept)
        if self._found is not None:
            self._end("stop", self._found)
            return self._grown(deltas)
        self._num_tokens += len(token_ids) - len(kept)
        if finish_reason is not None:
            deltas += self._finish()
            found = self._found
            self._end(*(("stop", found) if found is not None else (finish_reason, reason)))
        return self._grown(deltas)

    @property
    def _found(self) -> str | None:
        return self._content_stops.found or self._text_stops.found

    def _read(self, ids: Iterable[int]) -> list[Delta]:
        deltas: list[Delta] = []
        for token_id in ids:
            self._num_tokens += 1
            deltas += self._take(self._tokens.token(token_id))
            if self._found is not None:
                deltas += self._take_rest()
                break
        return deltas

    def _take(self, token: Token) -> list[Delta]:
        counts = self._num_tokens > self._rules.min_tokens
        released = self._text_stops.push(token.text, counts=counts)
        if self._text_stops.found is None and released == token.text and not self._waiting:
            return self._parse([token])
        self._waiting.append(token)
        return self._parse(self._released(len(released)))

    def _released(self, size: int) -> list[Token]:
        """Waiting tokens whose text is certain; a stop string cuts the last of them."""
        self._num_waiting += size
        tokens = []
        while self._waiting and len(self._waiting[0].text) <= self._num_waiting:
            token = self._waiting.popleft()
            self._num_waiting -= len(token.text)
            tokens.append(token)
        return tokens

    def _take_rest(self) -> list[Delta]:
        """What is before a stop string in the text, then the end of the message."""
        deltas: list[Delta] = []
        if self._text_stops.found is not None and self._waiting:
            cut = self._waiting[0].text[: self._num_waiting]
            self._waiting.clear()
            deltas += self._parse([Token(None, cut)] if cut else [])
        if self._messages is not None:
            deltas += self._stopped(self._messages.push([], is_last=True))
        return deltas

    def _parse(self, tokens: Sequence[Token]) -> list[Delta]:
        if not tokens:
            return []
        if self._messages is None:
            text = "".join(token.text for token in tokens)
            return [Delta("content", text)] if text else []
        return self._stopped(self._messages.push(tokens, is_last=False))

    def _stopped(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Without content that a stop string cuts off, or that one may begin with."""
        result: list[Delta] = []
        counts = self._num_tokens > self._rules.min_tokens
        for delta in deltas:
            if delta.channel == "content":
                delta = Delta("content", self._content_stops.push(delta.text, counts=counts))
            elif self._found is not None:
                continue
            if delta.text or delta.name is not None:
                result.append(delta)
        return result

    def _finish(self) -> list[Delta]:
        deltas = []
        if self._text_stops.found is None:
            deltas += self._parse(self._released(len(self._text_stops.finish())))
        if self._messages is not None:
            deltas += self._stopped(self._messages.push([], is_last=True))
        if held := self._content_stops.finish():
            deltas.append(Delta("content", held))
        return deltas

    def _end(self, finish_reason: str, stop_reason: StopReason) -> None:
        has_called = self._messages is not None and self._messages.has_called
        self._finish_reason = chat_finish_reason(
            finish_reason, self._request, has_called=has_called
        )
        self._stop_reason = stop_reason

    def _grown(self, deltas: Iterable[Delta]) -> Grown:
        return Grown(
            parts=[self._placed(delta) for delta in merged(deltas, coalesces=True)],
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            num_tokens=self._num_tokens,
            reasoning_tokens=self._messages.num_reasoning_tokens if self._messages else 0,
        )

    def _placed(self, delta: Delta) -> Part:
        place = delta.channel, delta.tool
        start = self._places.get(place, 0)
        self._places[place] = start + len(delta.text)
        tool_id = None
        if delta.name is not None:
            is_short = self._model.parsers.has_short_ids
            tool_id = call_id(self._request_id, self._index, delta.tool, is_short=is_short)
        return Part(delta.channel, start, delta.text, delta.tool, tool_id, delta.name)


def _messages(
    request: ChatCompletionRequest, prompt_ids: Sequence[int], model: TextModel
) -> MessageStream | None:
    reader = message_reader(request, model)
    return None if reader is None else reader.incremental(prompt_ids)


class TokenTexts:
    """Tokens with the text that they complete, as the engine decodes them."""

    def __init__(
        self, request: ChatCompletionRequest, prompt_ids: Sequence[int], model: TextModel
    ) -> None:
        """Parsers see their marks though they be special tokens; others are left out where the
        request does not want them."""
        hides = request.skip_special_tokens is not False
        is_parsed = model.parsers.is_any
        options = parse_options(request, model.template_kwargs)
        self._hidden = model.parsers.hidden_ids(options) if is_parsed and hides else frozenset()
        self._decoder = StreamDecoder(
            model.tokenizer,
            prompt_ids,
            skip_special_tokens=hides and not is_parsed,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
        )

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        return "".join(self.token(token_id).text for token_id in ids)

    def token(self, token_id: int) -> Token:
        if token_id in self._hidden:
            return Token(None, "")
        return Token(token_id, self._decoder.feed([token_id]))


def grown_text(grown: Iterable[Grown], channel: Channel, tool: int = 0) -> str:
    """The text of one channel after these pushes."""
    return "".join(
        part.text
        for one in grown
        for part in one.parts
        if part.channel == channel and part.tool == tool
    )
