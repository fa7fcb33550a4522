"""Reasoning between tags that a grammar knows: Qwen3, GLM, Mistral.

As vllm.parser.engine, for the part of an output up to the end of its reasoning.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.text.parsers.base import Delta, Token, Vocabulary
from workers.text.parsers.lexer import DROPPED, Lexer, Marks, marks_of

_START, _END, _CALL = "start", "end", "call"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """How one family marks its reasoning."""

    start: str
    end: str
    call: str
    """A call ends reasoning without saying so."""
    begins_inside: bool
    """Outputs begin with reasoning, whether its start is written or not."""
    are_tokens: bool = True
    reopens: bool = False
    """A start in the content begins more reasoning; else it is text there."""
    strips_end: bool = False
    """Space at the end of the reasoning is dropped."""
    others: tuple[str, ...] = ()
    """Further marks of the family's grammar: they are held together, and mean nothing here."""


class TagReasoningReader:
    def __init__(self, tags: ReasoningTags, vocabulary: Vocabulary, *, is_on: bool) -> None:
        """`is_on`: whether the request wants the model to reason."""
        self._tags = tags
        self._is_on = is_on
        texts = ((_START, tags.start), (_END, tags.end), (_CALL, tags.call))
        tokens = (_START, _END, _CALL) if tags.are_tokens else (_CALL,)
        self._marks = marks_of(texts + tuple((t, t) for t in tags.others), tokens, vocabulary)

    def whole(self, text: str, *, has_ended: bool) -> tuple[str | None, str | None]:
        if not self._is_on:
            return None, text
        lexer, parts = Lexer(self._marks), {True: "", False: ""}
        is_inside = self._tags.begins_inside and not has_ended
        for name, piece in [*lexer.feed(Token(None, text)), *lexer.finish()]:
            is_start = name == _START and (is_inside or self._tags.reopens)
            is_inside = is_start or (is_inside and name not in (_END, _CALL))
            if not is_start and name not in (_END, DROPPED):
                parts[is_inside] += piece
        reasoning = parts[True].rstrip() if self._tags.strips_end else parts[True]
        return reasoning or None, parts[False] or None

    def incremental(self) -> "TagReasoningStream":
        return TagReasoningStream(self._tags, self._marks)


class TagReasoningStream:
    def __init__(self, tags: ReasoningTags, marks: Marks) -> None:
        self._tags = tags
        self._marks = marks
        self._lexer = Lexer(marks)
        self._is_inside = tags.begins_inside
        self._space = ""
        self.has_ended = False
        self.num_tokens = 0

    def push(self, tokens: Sequence[Token]) -> tuple[list[Delta], Sequence[Token]]:
        deltas: list[Delta] = []
        for position, token in enumerate(tokens):
            rest = self._take(token, deltas)
            if self.has_ended:
                return deltas, [*rest, *tokens[position + 1 :]]
        return deltas, ()

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        for _, text in self._lexer.finish():
            self._give(text, deltas)
        return deltas

    def _take(self, token: Token, deltas: list[Delta]) -> list[Token]:
        """What is left of the token where it ends the reasoning."""
        pieces = list(self._lexer.feed(token))
        if self._is_inside and token.id is not None and token.id not in self._marks.ids:
            self.num_tokens += 1
        for position, (name, text) in enumerate(pieces):
            if not self._turn(name, text, deltas):
                continue
            behind = "".join(piece for _, piece in pieces[position + 1 :])
            behind += "".join(piece for _, piece in self._lexer.finish())
            if name == _CALL:
                return [Token(token.id if token.text == text else None, text + behind)]
            return [Token(None, behind)] if behind else []
        return []

    def _turn(self, name: str | None, text: str, deltas: list[Delta]) -> bool:
        """Whether reasoning ends with this piece."""
        if name == _START:
            self._is_inside = True
        elif name in (_CALL, _END) and (self._is_inside or name == _CALL):
            self.has_ended = True
        elif name not in (_END, DROPPED):
            self._give(text, deltas)
        return self.has_ended

    def _give(self, text: str, deltas: list[Delta]) -> None:
        if self._is_inside and self._tags.strips_end:
            text = self._space + text
            kept = text.rstrip()
            text, self._space = kept, text[len(kept) :]
        if text:
            deltas.append(Delta("reasoning" if self._is_inside else "content", text))
