"""Token ids to text as they come: never half a character, never a space too few (04 §4).

Two ways that differ in details visible to callers: `WindowDecoder`, whose state is plain data that
a client can carry, is how the derender endpoints decode; `StreamDecoder` is how an engine does.
Knows no request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers.decoders import DecodeStream

from workers.text.tokenizer import Tokenizer

PROMPT_TAIL = 7
"""Ids of the prompt that fill a window; the last few of them are decoded with the first output."""
CONTEXT = 5
STREAM_TAIL = 64
"""Ids of the prompt that prime a stream: more than any decoder looks back."""
MAX_UNFINISHED = 64
"""Tokens that may add up to no whole character; a character has four bytes, so more are garbage."""
MAX_ID = 2**32 - 1
"""The largest id that the tokenizer library takes."""

_REPLACEMENT = "\ufffd"
_INVALID_PREFIX = "Invalid prefix encountered"


class Decoder(Protocol):
    """One sequence being decoded."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""


@dataclass(frozen=True, slots=True)
class Window:
    """Pieces that may still change how the next one reads.

    `pieces[prefix:read]` has been given out; what follows `read` is an unfinished character.
    """

    pieces: tuple[str, ...] = ()
    prefix: int = 0
    read: int = 0


class WindowDecoder:
    """Decodes piece by piece. Immutable: every step gives the next window."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.named_special_ids if skip_special_tokens else frozenset()

    def seed(self, prompt_ids: Sequence[int] | None) -> Window:
        """A window over the end of the prompt, whose text counts as given out."""
        pieces = [
            self._tokenizer.piece(token) or ""
            for token in (prompt_ids or ())[-PROMPT_TAIL:]
            if token not in self._skipped
        ]
        return Window(tuple(pieces), max(len(pieces) - CONTEXT, 0), len(pieces))

    def feed(self, window: Window, ids: Sequence[int]) -> tuple[str, Window]:
        """The text that these ids complete, and the window after them."""
        text: list[str] = []
        for token in ids:
            piece, window = self._step(window, token)
            text.append(piece)
        return "".join(text), window

    def _step(self, window: Window, token: int) -> tuple[str, Window]:
        pieces = (*window.pieces, *self._pieces(token))
        join = self._tokenizer.pieces_to_text
        known = join(pieces[window.prefix : window.read])
        text = join(pieces[window.prefix :])
        is_unfinished = len(text) <= len(known) or text.endswith(_REPLACEMENT)
        if is_unfinished and len(pieces) - window.read < MAX_UNFINISHED:
            return "", _trimmed(pieces, window.prefix, window.read)
        return text[len(known) :], _trimmed(pieces, window.read, len(pieces))

    def _pieces(self, token: int) -> tuple[str, ...]:
        if token in self._skipped:
            return ()
        if not 0 <= token < self._tokenizer.vocab_size:
            return ("",)
        return (self._tokenizer.piece(token) or "",)


def _trimmed(pieces: tuple[str, ...], prefix: int, read: int) -> Window:
    """Without what no step looks at again. Offsets of a client may lie; none goes below zero."""
    return Window(pieces[prefix:], 0, max(read - prefix, 0))


class WindowStream:
    """One sequence, decoded from a window on. Mutable: one per choice."""

    def __init__(self, decoder: WindowDecoder, window: Window) -> None:
        self._decoder = decoder
        self.window = window

    def feed(self, ids: Sequence[int]) -> str:
        text, self.window = self._decoder.feed(self.window, ids)
        return text


class StreamDecoder:
    """One sequence, decoded by the tokenizer library's own stream. Mutable: one per choice."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream = self._new_stream(prompt_ids[-STREAM_TAIL:])
        self._unfinished: list[int] = []
        is_spaced = skip_special_tokens or spaces_between_special_tokens
        self._unspaced = {} if is_spaced else {i: t for t, i in tokenizer.added_tokens.items()}
        self._after_added = False

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        step = self._step_unspaced if self._unspaced else self._step
        return "".join(map(step, ids))

    def _step_unspaced(self, token: int) -> str:
        text = self._step(token)
        added = self._unspaced.get(token)
        is_after_added, self._after_added = self._after_added, added is not None
        return added if added is not None and is_after_added else text

    def _step(self, token: int) -> str:
        if not 0 <= token <= MAX_ID:
            return ""
        text = self._step_stream(token)
        if text:
            self._unfinished.clear()
            return text
        self._unfinished.append(token)
        return self._flush() if len(self._unfinished) >= MAX_UNFINISHED else ""

    def _flush(self) -> str:
        """Every step looks at all that is unfinished: garbage must not go on for ever."""
        self._stream = self._new_stream(())
        ids, self._unfinished = self._unfinished, []
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)

    def _step_stream(self, token: int) -> str:
        try:
            return self._tokenizer.step(self._stream, token) or ""
        except Exception as error:  # the library raises bare Exception
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            # Invalid UTF-8 changed text that was given out already: the stream cannot go on.
            self._stream = self._new_stream(())
            return self._tokenizer.step(self._stream, token) or ""

    def _new_stream(self, ids: Sequence[int]) -> DecodeStream:
        return self._tokenizer.decode_stream(list(ids), skip_special_tokens=self._skip)
