"""Calls written with tags, driven by a table of marks and states: Qwen3 coder, GLM, Mistral.

As vllm.parser.engine. Special tokens that the grammar does not know are no text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from workers.text.parsers.base import Call, Delta, Parsed, Token, ToolContext
from workers.text.parsers.lexer import DROPPED, Lexer, marks_of

State = Literal["content", "preamble", "name", "arguments", "between"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a mark does."""

    to: State
    ends: bool = False
    """A call ends, before another may begin."""
    begins: bool = False
    is_argument: bool = False
    """The mark is text of the arguments."""


class Arguments(Protocol):
    """The arguments of one call as their text comes."""

    def feed(self, text: str) -> str:
        """JSON that is certain."""

    def close(self) -> str: ...

    def whole(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CallGrammar:
    texts: tuple[tuple[str, str], ...]
    """Name and text of every mark."""
    tokens: frozenset[str]
    """Names of marks that are tokens where the model has them."""
    turns: Mapping[tuple[State, str], Turn]
    arguments: Callable[[Mapping[str, Any]], Arguments]
    """For a function with these properties."""
    reasoning: frozenset[str] = frozenset()
    """Names of marks that mean nothing where no reasoning parser runs."""
    checks_names: bool = False
    """Calls of functions that the request does not have are no calls."""
    takes_empty_names: bool = False


class ContentGate:
    """Content around calls: blank text waits, and is dropped where a call has been made."""

    def __init__(self) -> None:
        self.has_called = False
        self._has_text = False
        self._blank = ""

    def push(self, text: str) -> str:
        if self._has_text:
            return text
        if not text.strip():
            self._blank += "" if self.has_called else text
            return ""
        self._has_text = True
        text, self._blank = self._blank + text, ""
        return text

    def finish(self) -> str:
        return "" if self.has_called else self._blank


class MarkupReader:
    is_grammar = True
    coalesces = True

    def __init__(self, grammar: CallGrammar, context: ToolContext) -> None:
        self._grammar = grammar
        self._context = context

    def whole(self, text: str) -> Parsed:
        stream = self.incremental()
        deltas = stream.push([Token(None, text)]) + stream.finish()
        content = "".join(delta.text for delta in deltas if delta.channel == "content")
        if stream.calls:
            content = content.strip()
        return Parsed(content or None, stream.calls)

    def incremental(self) -> "MarkupStream":
        return MarkupStream(self._grammar, self._context)


class MarkupStream:
    def __init__(self, grammar: CallGrammar, context: ToolContext) -> None:
        self._grammar = grammar
        self._context = context
        self._lexer = Lexer(marks_of(grammar.texts, grammar.tokens, context.vocabulary))
        self._gate = ContentGate()
        self._state: State = "content"
        self._name = ""
        self._arguments: Arguments | None = None
        self._is_open = False
        self._is_named = False
        self.calls: list[Call] = []
        """Those that are complete."""

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        deltas: list[Delta] = []
        for token in tokens:
            for name, text in self._lexer.feed(token):
                self._piece(name, text, deltas)
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        for name, text in self._lexer.finish():
            self._piece(name, text, deltas)
        self._end(deltas)
        if blank := self._gate.finish():
            deltas.append(Delta("content", blank))
        return deltas

    def _piece(self, name: str | None, text: str, deltas: list[Delta]) -> None:
        if name == DROPPED:
            return
        turn = self._grammar.turns.get((self._state, name)) if name else None
        if turn is None or (self._context.passes_reasoning and name in self._grammar.reasoning):
            self._text(text, deltas)
            return
        if turn.ends:
            self._end(deltas)
        self._state = turn.to
        if turn.begins:
            self._name, self._arguments = "", None
            self._is_open, self._is_named = True, False
            self._gate.has_called = True
        if turn.is_argument:
            self._argument(text, deltas)

    def _text(self, text: str, deltas: list[Delta]) -> None:
        if self._state == "content":
            if content := self._gate.push(text):
                deltas.append(Delta("content", content))
        elif self._state == "name":
            self._name += text
        elif self._state == "arguments":
            self._argument(text, deltas)

    def _argument(self, text: str, deltas: list[Delta]) -> None:
        self._announce(deltas)
        if self._arguments is None:
            properties = self._context.properties.get(self._name.strip(), {})
            self._arguments = self._grammar.arguments(properties)
        written = self._arguments.feed(text)
        if written and self._is_named:
            deltas.append(Delta("tool", written, len(self.calls)))

    def _announce(self, deltas: list[Delta]) -> None:
        name = self._name.strip()
        is_right = bool(name) or self._grammar.takes_empty_names
        if self._grammar.checks_names and self._context.properties:
            is_right = name in self._context.properties
        if is_right and not self._is_named:
            self._is_named = True
            deltas.append(Delta("tool", tool=len(self.calls), name=name))

    def _end(self, deltas: list[Delta]) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._announce(deltas)
        if not self._is_named:
            return
        written = "{}" if self._arguments is None else self._arguments.close()
        if written:
            deltas.append(Delta("tool", written, len(self.calls)))
        whole = "{}" if self._arguments is None else self._arguments.whole()
        self.calls.append(Call(self._name.strip(), whole))
