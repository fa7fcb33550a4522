"""Llama 3.x and 4: an output that is `{"name": …, "parameters": …}; {…}`, maybe behind a mark.

As vllm.tool_parsers.llama_tool_parser, but that calls which come faster than one step each are
not lost.
"""

import json
from collections import deque
from collections.abc import Sequence

from workers.text.parsers.base import (
    MALFORMED,
    Call,
    Delta,
    Parsed,
    Token,
    ToolContext,
    dumps,
    text_of,
)
from workers.text.parsers.json_scan import WHITESPACE, ObjectScanner, Rewriter

MARK = "<|python_tag|>"
_SEPARATOR = "; "
_ARGUMENTS = ("arguments", "parameters")


class LlamaReader:
    is_grammar = False
    coalesces = False

    def __init__(self, context: ToolContext) -> None:
        pass

    def whole(self, text: str) -> Parsed:
        """Every object anywhere in the text is a call, or all of it is content."""
        decoder, calls, position = json.JSONDecoder(), list[Call](), 0
        try:
            while (start := text.find("{", position)) >= 0:
                given, size = decoder.raw_decode(text[start:])
                # The brace that follows at once belongs to the object before it.
                position = start + size + 1
                calls.append(_call(given))
        except MALFORMED:
            return Parsed(text)
        return Parsed(None, calls) if calls else Parsed(text)

    def incremental(self) -> "LlamaStream":
        return LlamaStream()


def _call(given: dict[str, object]) -> Call:
    name = given["name"]
    if not isinstance(name, str):
        raise TypeError("a name is text")
    key = "arguments" if "arguments" in given else "parameters"
    return Call(name, dumps(given[key]))


class _StreamedCall:
    """One call, and what of it may be given out: text that the next characters cannot change."""

    def __init__(self) -> None:
        self._scanner = ObjectScanner(_ARGUMENTS)
        self._rewriter = Rewriter()
        self._certain = ""
        self._latest = ""
        self.is_named = False

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_done

    @property
    def is_broken(self) -> bool:
        return self._scanner.is_broken

    @property
    def name(self) -> str | None:
        return self._scanner.name or None

    def feed(self, text: str) -> str:
        rest = self._scanner.feed(text)
        for piece in self._rewriter.feed(self._scanner.take()):
            self._latest += piece
        return rest

    def take(self) -> str | None:
        """One step behind what was read, until the call is complete; None: nothing new."""
        if not self._scanner.has_arguments:
            return None
        if self.is_complete:
            text = self._certain + self._latest + self._rewriter.finish() + self._rewriter.closing
            self._certain = self._latest = self._rewriter.closing = ""
            return text
        if not self._latest:
            return None
        text, self._certain, self._latest = self._certain, self._latest, ""
        return text or None

    def rest(self, *, is_completed: bool) -> str:
        """Of a call that the output left unfinished; `is_completed`: as valid JSON."""
        if self.is_complete or not (self._certain or self._latest or is_completed):
            return ""
        text = self._certain + self._latest
        return text + self._rewriter.closers() if is_completed else text


class LlamaStream:
    """One step a push: that a call has begun, then its name, then its arguments."""

    def __init__(self) -> None:
        self._beginning: str | None = ""
        """Text at the very beginning that may be of a mark; None once that is settled."""
        self._is_text = False
        self._skip = 0
        self._is_over = False
        self._open: _StreamedCall | None = None
        self._calls: deque[_StreamedCall] = deque()
        """The one whose turn it is, and those behind it."""
        self._index = -1
        self._gave = False

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        text = text_of(tokens)
        if self._beginning is not None:
            text = self._beginning + text
            if text and MARK.startswith(text) and text != MARK:
                self._beginning = text
                return []
            self._begin(text)
        if self._is_text or (not text and self._beginning is not None):
            return [Delta("content", text)]
        self._read(text.removeprefix(MARK))
        deltas = self._next()
        self._gave = bool(deltas)
        return deltas

    def finish(self) -> list[Delta]:
        if self._beginning:
            return [Delta("content", self._beginning)]
        deltas = list[Delta]()
        while new := [delta for delta in self._next() if delta.text or delta.name]:
            deltas += new
        if self._index >= 0 and (rest := self._calls[0].rest(is_completed=self._gave)):
            deltas.append(Delta("tool", rest, self._index))
        return deltas

    def _begin(self, text: str) -> None:
        if text:
            self._beginning = None
            self._is_text = not text.startswith(("{", MARK))

    def _read(self, text: str) -> None:
        while text and not self._is_over:
            if self._open is None:
                text = self._between(text)
                continue
            text = self._open.feed(text)
            self._is_over = self._open.is_broken
            if self._open.is_complete:
                self._open, self._skip = None, len(_SEPARATOR)

    def _between(self, text: str) -> str:
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        text = text[skipped:].lstrip(WHITESPACE)
        if text and text[0] == "{":
            self._open = _StreamedCall()
            self._calls.append(self._open)
        else:
            self._is_over = bool(text)
        return text

    def _next(self) -> list[Delta]:
        if not self._calls:
            return []
        if self._index < 0:
            self._index = 0
            return []
        call = self._calls[0]
        if not call.is_named:
            if call.name is None:
                return []
            call.is_named = True
            return [Delta("tool", tool=self._index, name=call.name)]
        text = call.take()
        deltas = [] if text is None else [Delta("tool", text, self._index)]
        if len(self._calls) > 1:
            self._calls.popleft()
            self._index += 1
        return deltas
