"""Byte-level BPE by rank, as tiktoken does it: the same ids in a fifth of the time.

Hugging Face's library notes for every character where it came from. Where nobody asks for that, and
the tokenizer is one of which it is certain that both give the same ids, this takes its place. Knows
no chat and no template.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from unicodedata import is_normalized

import tiktoken
from tokenizers.models import BPE

MAX_CHARS = 65_536
"""Of one text. With a million blanks in a row the expressions run out of stack."""

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = frozenset(f"{_LETTERS}|{digits}|{_OTHERS}" for digits in (r"\p{N}", r"\p{N}{1,3}"))
"""Of Qwen and of Llama 3. That both libraries read them alike was tried for every code point."""


MAX_PIECE_CHARS = 1024 * 1024
"""Of a text that cannot be cut for so long: hundreds of megabytes while it is tokenized."""
_NEAR = 256
_CUTS = (r"(?<=\S)(?=[ \t])", r"(?<=[A-Za-z])(?=[0-9])", r"(?<=[0-9])(?=[A-Za-z])")
"""Where every expression ends a match, whatever stands around: a blank is only ever a match's
beginning, and no match has letters and numbers. Normalizing joins nothing there."""


class RankedBpe:
    """Encodes text and added tokens in it. Safe to share between threads."""

    def __init__(
        self, ranks: Mapping[bytes, int], added: Mapping[str, int], pattern: str, *, is_nfc: bool
    ) -> None:
        self._encoding = tiktoken.Encoding(
            "ranked", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens=dict(added)
        )
        self._added = set(added)
        self._is_nfc = is_nfc
        self._cuts = _cuts(added)

    def pieces(self, text: str, most: int = MAX_CHARS) -> list[str]:
        """The text in pieces that may be encoded one by one, of at most so many characters where it
        can be cut at all."""
        pieces, start = [], 0
        while len(text) - start > most:
            end = self._last_cut(text, start, start + most)
            pieces.append(text[start:end])
            start = end
        return [*pieces, text[start:]] if start < len(text) or not text else pieces

    def _last_cut(self, text: str, start: int, end: int) -> int:
        for low in (max(start, end - _NEAR), start):
            at = max(
                (match.start() for match in self._cuts.finditer(text, low + 1, end)), default=0
            )
            if at > start:
                return at
        for low in range(end, start + MAX_PIECE_CHARS, MAX_CHARS):  # little at a time: others wait
            if found := self._cuts.search(text, low, low + MAX_CHARS + 1):
                return found.start()
        return len(text)

    def encode(self, text: str) -> list[int] | None:
        """None for a text that has to be left to the other library."""
        if len(text) > MAX_CHARS or not (text.isascii() or self._is_clean(text)):
            return None
        return self._encoding.encode(text, allowed_special=self._added, disallowed_special=())

    def _is_clean(self, text: str) -> bool:
        """Whether normalizing changes nothing. Lone surrogates are for the other one to refuse."""
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
        return not self._is_nfc or is_normalized("NFC", text)


def ranked_bpe(whole: Mapping[str, Any]) -> RankedBpe | None:
    """Of a complete `tokenizer.json`; None where the ids might differ in any text.

    Merging by rank is merging by the list of merges where the list is in the order of the tokens it
    makes, and makes every token out of its own bytes: a pair that the list lacks can then never
    stand side by side.
    """
    model, added = whole["model"], whole["added_tokens"]
    pattern = _pattern(whole["pre_tokenizer"] or {})
    if pattern not in PATTERNS or not _is_plain(whole) or not _are_apart(added):
        return None
    ranks = _ranks(model["vocab"])
    merges = [_pair(merge) for merge in model["merges"]]
    if ranks is None or not _are_in_order(model["vocab"], merges):
        return None
    if not _makes_all(model["vocab"], merges):
        return None
    tokens = {token["content"]: token["id"] for token in added}
    return RankedBpe(ranks, tokens, pattern, is_nfc=whole["normalizer"] is not None)


def _is_plain(whole: Mapping[str, Any]) -> bool:
    model = whole["model"]
    extras = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    return (
        model["type"] == "BPE"
        and not any(model.get(extra) for extra in extras)
        and (whole["normalizer"] or {"type": "NFC"})["type"] == "NFC"
        and not whole.get("truncation")
        and not whole.get("padding")
    )


def _pattern(pre_tokenizer: Mapping[str, Any]) -> str:
    """Of one split and nothing else but bytes; empty for any other way."""
    steps = pre_tokenizer.get("pretokenizers", [])
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return ""
    split, as_bytes = steps
    is_simple = split["behavior"] == "Isolated" and not split["invert"]
    is_simple = is_simple and not as_bytes["add_prefix_space"] and not as_bytes["use_regex"]
    return str(split["pattern"].get("Regex", "")) if is_simple else ""


def _cuts(added: Iterable[str]) -> re.Pattern[str]:
    """Those that are in none of the tokens."""
    added = list(added)
    safe = [cut for cut in _CUTS if not any(re.search(cut, token) for token in added)]
    return re.compile("|".join(safe) or r"(?!)")


def _are_apart(added: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it is clear where each of the tokens is in a text: none begins with another."""
    greedy = ("lstrip", "rstrip", "normalized", "single_word")
    texts = sorted(token["content"] for token in added)
    return not any(token[flag] for token in added for flag in greedy) and not any(
        longer.startswith(shorter) for shorter, longer in pairwise(texts)
    )


def _ranks(vocabulary: Mapping[str, int]) -> dict[bytes, int] | None:
    """None where a piece is not written in the alphabet of bytes, or a byte is missing."""
    try:
        ranks = {bytes(map(_BYTE_OF.__getitem__, piece)): n for piece, n in vocabulary.items()}
    except KeyError:
        return None
    return ranks if all(bytes([byte]) in ranks for byte in range(256)) else None


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _are_in_order(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> bool:
    made = (vocabulary[left + right] for left, right in merges)
    return all(earlier <= later for earlier, later in pairwise(made))


def _makes_all(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> bool:
    model = BPE(vocab=dict(vocabulary), merges=list(merges))
    return all(len(model.tokenize(piece)) == 1 for piece in vocabulary)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable Latin-1 stands for itself, the rest for what follows from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + number): byte for number, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF = _byte_alphabet()
