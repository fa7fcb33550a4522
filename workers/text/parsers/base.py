"""What output parsers have in common: tokens and texts in, deltas and messages out.

A parser reads an output whole or as it comes. Both give the same for well-formed markup; where a
model's markup is broken each does what vLLM does in that mode. Neither raises for any text.
Knows no request and no wire form.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

Channel = Literal["content", "reasoning", "tool"]

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""What reading a model's broken JSON may raise."""


class Token(NamedTuple):
    """One output token, and the text that it completes: empty within a character."""

    id: int | None
    """None where only text is known: then marks are looked for in the text."""
    text: str


@dataclass(frozen=True, slots=True)
class Delta:
    """What one channel of a message grows by."""

    channel: Channel
    text: str = ""
    """Of a call: its arguments, JSON text."""
    tool: int = 0
    """Position of the call in the message."""
    name: str | None = None
    """Of a call, with its first delta only."""


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    """JSON text, as far as the model wrote JSON."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Content and calls of a whole output. Without calls the content is all of the text."""

    content: str | None
    calls: Sequence[Call] = ()
    is_final: bool = False
    """Without calls the content is still not all of the text: calls were begun and not ended."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The added tokens of one model. One per process: parsers keep there what they make of them."""

    added: Mapping[str, int] = field(default_factory=dict)
    """Ids by text."""
    special: Mapping[int, str] = field(default_factory=dict)
    """Texts of special tokens by id: not part of a message, unless a parser knows them."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool parser knows of the request and the model."""

    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON schemas of arguments, by function and argument."""
    is_forced: bool = False
    """A call must be made."""
    passes_reasoning: bool = False
    """No reasoning parser runs: its marks are ordinary text."""
    vocabulary: "Vocabulary" = field(default_factory=lambda: Vocabulary())


class ToolStream(Protocol):
    """One output's content as it comes."""

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        """What these tokens make certain."""

    def finish(self) -> list[Delta]:
        """The rest; the output has ended."""


class ToolReader(Protocol):
    """One way of writing calls, for one request."""

    is_grammar: bool
    """Drops its marks from the content even of requests that may not call."""
    coalesces: bool
    """Name and arguments of a call in one chunk are one delta."""

    def whole(self, text: str) -> Parsed: ...

    def incremental(self) -> ToolStream: ...


class ReasoningStream(Protocol):
    """One output up to the end of its reasoning, as it comes."""

    has_ended: bool
    num_tokens: int
    """Tokens of reasoning so far."""

    def push(self, tokens: Sequence[Token]) -> tuple[list[Delta], Sequence[Token]]:
        """What these tokens make certain, and those that are left where reasoning ended."""

    def finish(self) -> list[Delta]: ...


class ReasoningReader(Protocol):
    """One way of marking reasoning, for one request."""

    def whole(self, text: str, *, has_ended: bool) -> tuple[str | None, str | None]:
        """Reasoning and content. `has_ended`: the prompt closed the reasoning."""

    def incremental(self) -> ReasoningStream: ...


def text_of(tokens: Iterable[Token]) -> str:
    return "".join(token.text for token in tokens)


def dumps(value: Any) -> str:
    """JSON as vLLM writes arguments."""
    return json.dumps(value, ensure_ascii=False)


def merged(deltas: Iterable[Delta], *, coalesces: bool) -> list[Delta]:
    """Neighbours of one channel as one. `coalesces`: a call's name and arguments, too."""
    result: list[Delta] = []
    for delta in deltas:
        if result and _is_joinable(result[-1], delta, coalesces):
            result[-1] = replace(result[-1], text=result[-1].text + delta.text)
        else:
            result.append(delta)
    return result


def _is_joinable(last: Delta, new: Delta, coalesces: bool) -> bool:
    if last.channel != new.channel or new.name is not None:
        return False
    if new.channel != "tool":
        return True
    return last.tool == new.tool and (coalesces or last.name is None)


def overlap(text: str, mark: str) -> int:
    """Characters at the end of `text` that may be the beginning of `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
