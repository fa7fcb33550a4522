"""Tokens cut at marks: a special token is a mark by its id, other marks are found in the text.

What may be the beginning of a mark waits for what follows. As vllm.parser.engine.incremental_lexer.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from workers.text.parsers.base import Token, Vocabulary

DROPPED = "dropped"
"""Special tokens that no grammar knows: not part of any text."""

Piece = tuple[str | None, str]
"""A mark's name, or None for ordinary text; and the text."""


class Marks:
    """The marks of one grammar in one vocabulary."""

    def __init__(
        self, texts: Mapping[str, str], tokens: Collection[str], vocabulary: Vocabulary
    ) -> None:
        """`texts`: by name. `tokens`: names of those that are tokens where the model has them."""
        self.names = {text: name for name, text in texts.items()}
        self.ids = {
            vocabulary.added[text]: (name, text)
            for name, text in texts.items()
            if name in tokens and text in vocabulary.added
        }
        """Names and texts of those that are tokens."""
        for token, text in vocabulary.special.items():
            if text not in texts.values():
                self.ids[token] = (DROPPED, text)
                self.names[text] = DROPPED
        self.token_names = {name for name, _ in self.ids.values()}
        longest_first = sorted(self.names, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)))
        self.beginnings = {t[:size] for t in self.names for size in range(1, len(t))}
        self.longest = max(map(len, self.names))


@cache
def marks_of(
    texts: tuple[tuple[str, str], ...], tokens: Collection[str], vocabulary: Vocabulary
) -> Marks:
    """The same, made once. `texts`: pairs of name and text."""
    return Marks(dict(texts), tokens, vocabulary)


class Lexer:
    """One output. Mutable."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._held = ""
        self._knows_ids = False

    def feed(self, token: Token) -> Iterator[Piece]:
        self._knows_ids = self._knows_ids or token.id is not None
        mark = None if token.id is None else self._marks.ids.get(token.id)
        if mark is None:
            yield from self._cut(token.text, is_last=False)
            return
        # A character that never was completed may come with the mark behind it.
        yield from self._cut(token.text.removesuffix(mark[1]), is_last=True)
        yield mark

    def finish(self) -> Iterator[Piece]:
        yield from self._cut("", is_last=True)

    def _cut(self, text: str, *, is_last: bool) -> Iterator[Piece]:
        text = self._held + text
        position = 0
        for found in self._marks.pattern.finditer(text):
            if not is_last and found.end() == len(text) and found[0] in self._marks.beginnings:
                break  # a longer mark may begin with this one
            if found.start() > position:
                yield None, text[position : found.start()]
            yield self._named(found[0])
            position = found.end()
        end = len(text) if is_last else len(text) - self._open_end(text, position)
        self._held = text[end:]
        if end > position:
            yield None, text[position:end]

    def _named(self, text: str) -> Piece:
        name = self._marks.names[text]
        is_ordinary = self._knows_ids and name in self._marks.token_names
        return (None if is_ordinary else name), text

    def _open_end(self, text: str, position: int) -> int:
        """Characters at the end that may be the beginning of a mark."""
        for size in range(min(self._marks.longest - 1, len(text) - position), 0, -1):
            if text[-size:] in self._marks.beginnings:
                return size
        return 0
