"""What the engine needs of a tokenizer: growing text, single tokens, bad words, bytes of tokens.

A thin reading of `workers.text.tokenizer`. Knows no tensors.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from schemas.refusals import bad_request
from workers.models.engine.sampling import Sampling
from workers.text.tokenizer import Tokenizer

MAX_BAD_WORDS = 128
"""Token sequences that bad_words may come to."""

_REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTEXT_TOKENS = 4
"""Sampled tokens looked back at to complete a character that began before (04 §4.1)."""


class TextSource:
    """One model's tokenizer as the engine sees it; shared by all requests."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Callable[[int], str]:
        """Text of one token after another; incomplete characters wait for their rest."""
        return _TextStream(self._tokenizer, prompt, sampling).push

    def token_text(self, token: int, before: Sequence[int]) -> str:
        """A token's own text; bytes of a character belong to the token that completes it."""
        text = self._tokenizer.decode([token])
        if not text.endswith(_REPLACEMENT):
            return text
        for length in range(1, min(_CONTEXT_TOKENS, len(before)) + 1):
            context = list(before[-length:])
            whole = self._tokenizer.decode([*context, token])
            if whole.endswith(_REPLACEMENT):
                continue
            clean = self._clean_prefix(context)
            return whole[len(clean) :]
        return ""

    def _clean_prefix(self, ids: Sequence[int]) -> str:
        """The text of as many of these ids as decode without a broken character at the end."""
        for end in range(len(ids), 0, -1):
            text = self._tokenizer.decode(ids[:end])
            if not text.endswith(_REPLACEMENT):
                return text
        return ""

    def bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token sequences to avoid (03 §7.4): as given, and as after a space."""
        found: list[list[int]] = []
        for word in words:
            plain = self._encode(word.lstrip())
            spaced = self._encode(" " + word.lstrip())
            if not plain:
                raise bad_request(
                    "bad_words entries must tokenize to at least one token.",
                    "bad_words",
                    list(words),
                )
            found.append(plain)
            if len(spaced) == len(plain) and spaced[0] != plain[0]:
                found.append(spaced)
        if len(found) > MAX_BAD_WORDS:
            raise bad_request(
                f"Too many bad words after tokenization: {len(found)}. "
                f"The max number is {MAX_BAD_WORDS}.",
                "bad_words",
                list(words),
            )
        return found

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def token_bytes(self) -> Mapping[int, bytes]:
        """Bytes of every token that is ordinary text; built on first use."""
        special = self._tokenizer.special_ids
        return {
            token: self._bytes_of(piece)
            for piece, token in self._tokenizer.vocabulary.items()
            if token not in special and token < self._vocab_size
        }

    def _bytes_of(self, piece: str) -> bytes:
        if piece in self._tokenizer.added_tokens:
            return piece.encode()
        if self._is_byte_level:
            return bytes(_BYTE_OF_CHAR[char] for char in piece if char in _BYTE_OF_CHAR)
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("\u2581", " ").encode()

    @cached_property
    def _is_byte_level(self) -> bool:
        """Byte-level vocabularies write a space as Ġ; the others mark it with ▁."""
        vocabulary = self._tokenizer.vocabulary
        return "\u0120" in vocabulary or "\u2581" not in vocabulary


class _TextStream:
    """One choice's decoder. Never raises for what a model may sample."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], sampling: Sampling) -> None:
        self._tokenizer = tokenizer
        self._skips = sampling.skip_special_tokens
        self._stream = tokenizer.decode_stream(prompt, skip_special_tokens=self._skips)
        joins = not (self._skips or sampling.spaces_between_special_tokens)
        self._added = {i: text for text, i in tokenizer.added_tokens.items()} if joins else {}
        self._was_added = False

    def push(self, token: int) -> str:
        text = self._step(token)
        added, was_added = self._added.get(token), self._was_added
        self._was_added = added is not None
        # Without spaces between special tokens, neighbours are written as they are.
        return added if added is not None and was_added else text

    def _step(self, token: int) -> str:
        try:
            return self._tokenizer.step(self._stream, token) or ""
        except (OverflowError, TypeError):
            return ""
        except Exception as error:
            # The library's bare error for output that is no extension of what it gave before
            # (a byte sequence that never becomes a character): go on from here.
            if not str(error).startswith("Invalid prefix"):
                raise
            self._stream = self._tokenizer.decode_stream(skip_special_tokens=self._skips)
            return self._tokenizer.step(self._stream, token) or ""


def _byte_level_alphabet() -> dict[str, int]:
    """What byte-level vocabularies write bytes with: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHAR = _byte_level_alphabet()
