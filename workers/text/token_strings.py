"""Single tokens as text, for log-probabilities (04 §4.1). Knows no request."""

from collections.abc import Sequence

from workers.text.tokenizer import Tokenizer

CONTEXT = 4
"""Tokens before one that may hold the beginning of its character."""

_REPLACEMENT = "\ufffd"


class TokenStrings:
    """How tokens of one tokenizer read by themselves. Remembers them; safe to share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token: int, before: Sequence[int] = ()) -> str | None:
        """The token's text; None outside the vocabulary.

        The bytes of a character that `before` began count for the token that ends it: the others
        read as nothing.
        """
        text = self.alone(token)
        if text is None or not text.endswith(_REPLACEMENT):
            return text
        return self._in_context(token, list(before[-CONTEXT:]))

    def alone(self, token: int) -> str | None:
        text = self._known.get(token)
        if text is None:
            text = self._decode_alone(token)
            if text is not None:  # the others are without number
                self._known[token] = text
        return text

    def _decode_alone(self, token: int) -> str | None:
        piece = self._tokenizer.piece(token)
        if piece is None:
            return None
        return _with_spaces(piece, self._tokenizer.decode([token]), self._tokenizer.space_marker)

    def _in_context(self, token: int, before: list[int]) -> str:
        for length in range(1, len(before) + 1):
            context = before[-length:]
            text = self._tokenizer.decode([*context, token])
            if not text.endswith(_REPLACEMENT):
                return _beyond(self._tokenizer.decode(self._finished(context)), text)
        return ""

    def _finished(self, context: list[int]) -> list[int]:
        """Without the tokens at the end that leave a character unfinished."""
        end = len(context)
        while end and self._tokenizer.decode([context[end - 1]]).endswith(_REPLACEMENT):
            end -= 1
        return context[:end]


def _with_spaces(piece: str, text: str, marker: str | None) -> str:
    """Give back the spaces at the start that the decoder takes away."""
    if marker is None:
        return text
    wanted = len(piece) - len(piece.lstrip(marker))
    found = len(text) - len(text.lstrip(" "))
    return " " * max(wanted - found, 0) + text


def _beyond(known: str, text: str) -> str:
    """What follows the beginning that both share."""
    shared = 0
    while shared < min(len(known), len(text)) and known[shared] == text[shared]:
        shared += 1
    return text[shared:]
