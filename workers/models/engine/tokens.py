"""What the engine needs of a tokenizer: growing text, single tokens, bad words, bytes of tokens.

A thin reading of `workers.text`. Knows no tensors.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from schemas.refusals import bad_request
from workers.models.engine.sampling import Sampling
from workers.text.detokenizer import StreamDecoder
from workers.text.token_strings import TokenStrings
from workers.text.tokenizer import Tokenizer

MAX_BAD_WORDS = 128
"""Token sequences that bad_words may come to."""
MAX_BAD_WORDS_CHARACTERS = 64 * 1024

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextSource:
    """One model's tokenizer as the engine sees it; shared by all requests."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._strings = TokenStrings(tokenizer)
        self._vocab_size = vocab_size

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Callable[[int], str]:
        """Text of one token after another; incomplete characters wait for their rest."""
        decoder = StreamDecoder(
            self._tokenizer,
            prompt,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )
        return lambda token: decoder.feed((token,))

    def token_text(self, token: int, before: Sequence[int]) -> str:
        """A token's own text; bytes of a character belong to the token that completes it."""
        return self._strings.text(token, before) or ""

    def bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token sequences to avoid (03 §7.4): as given, and as after a space. Blocking."""
        _check_bad_words(words)
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

    @cached_property
    def all_token_bytes(self) -> Mapping[int, bytes]:
        """The same with special tokens, spelled as text."""
        vocabulary = self._tokenizer.vocabulary
        special = {i: piece.encode() for piece, i in vocabulary.items() if i < self._vocab_size}
        return special | dict(self.token_bytes)

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


def _check_bad_words(words: Sequence[str]) -> None:
    """Each comes to a sequence at least: too many are not tokenized to be counted."""
    if len(words) > MAX_BAD_WORDS:
        raise bad_request(
            f"Too many bad words: {len(words)}. The max number is {MAX_BAD_WORDS}.", "bad_words"
        )
    if sum(map(len, words)) > MAX_BAD_WORDS_CHARACTERS:
        raise bad_request(
            f"bad_words have more than {MAX_BAD_WORDS_CHARACTERS} characters together.",
            "bad_words",
        )


def _byte_level_alphabet() -> dict[str, int]:
    """What byte-level vocabularies write bytes with: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF_CHAR = _byte_level_alphabet()
