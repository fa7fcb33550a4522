"""Reasoning between two tokens: DeepSeek R1 and what follows it. Also none at all.

As vllm.reasoning.basic_parsers and deepseek_r1_reasoning_parser.
"""

from collections.abc import Sequence

from workers.text.parsers.base import Delta, Token, Vocabulary

START, END = "<think>", "</think>"


class ThinkingReader:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._start = vocabulary.added.get(START)
        self._end = vocabulary.added.get(END)

    def whole(self, text: str, *, has_ended: bool) -> tuple[str | None, str | None]:
        """The text tells alone: a prompt that closed the reasoning is not looked at, as in vLLM."""
        before, start, behind = text.partition(START)
        reasoning, end, content = (behind if start else before).partition(END)
        return reasoning, (content or None) if end else None

    def incremental(self) -> "ThinkingStream":
        return ThinkingStream(self._start, self._end)


class ThinkingStream:
    def __init__(self, start: int | None, end: int | None) -> None:
        self._start = start
        self._end = end
        self._has_begun = False
        self.has_ended = False
        self.num_tokens = 0

    def push(self, tokens: Sequence[Token]) -> tuple[list[Delta], Sequence[Token]]:
        text = ""
        for position, token in enumerate(tokens):
            if token.id is not None and token.id == self._end:
                self.has_ended = True
                text += token.text.removesuffix(END)
                return _reasoning(text), tokens[position + 1 :]
            text += self._inside(token)
        return _reasoning(text), ()

    def finish(self) -> list[Delta]:
        return []

    def _inside(self, token: Token) -> str:
        if token.id is not None and token.id == self._start:
            self._has_begun = True
            return token.text.removesuffix(START)
        self.num_tokens += self._has_begun and token.id is not None
        return token.text


def _reasoning(text: str) -> list[Delta]:
    return [Delta("reasoning", text)] if text else []


class SilentReader:
    """A model that was asked not to reason: all is content."""

    def whole(self, text: str, *, has_ended: bool) -> tuple[str | None, str | None]:
        return None, text

    def incremental(self) -> "SilentStream":
        return SilentStream()


class SilentStream:
    has_ended = False
    num_tokens = 0

    def push(self, tokens: Sequence[Token]) -> tuple[list[Delta], Sequence[Token]]:
        self.has_ended = True
        return [], tokens

    def finish(self) -> list[Delta]:
        return []
