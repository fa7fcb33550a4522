"""Tokenizes a conversation turn by turn and remembers turns: most of them come again.

A tokenizer cuts text at its added tokens before it does anything else, so a text is the sum of its
turns wherever nothing depends on what stands in front of one. Knows no chat and no template.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from workers.text.tokenizer import Tokenizer

# Longer texts are rarely seen twice; shorter ones are done before a look-up pays.
_MAX_SEGMENT = 32_768
_MIN_SEGMENT = 48
_MAX_CHARS = 2_000_000
"""Of all remembered texts together: some tens of megabytes with their ids."""


class SegmentEncoder:
    """Encodes without adding special tokens. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_chars: int = _MAX_CHARS) -> None:
        self._tokenizer = tokenizer
        self._boundary = _boundary(tokenizer)
        self._max_chars = max_chars
        self._chars = 0
        self._known: OrderedDict[str, list[int]] = OrderedDict()
        self._lock = Lock()

    @property
    def is_active(self) -> bool:
        """Whether this tokenizer's texts can be cut at all."""
        return self._boundary is not None

    def encode(self, text: str) -> list[int]:
        """The same ids as the tokenizer's own."""
        boundary = self._boundary
        if boundary is None or boundary not in text:
            return self._tokenizer.encode(text, add_special_tokens=False)
        end = self._tokenizer.added_tokens[boundary]
        first, *others = self._segments(text.split(boundary))
        ids = list(first)
        for segment in others:
            ids.append(end)
            ids += segment
        return ids

    def _segments(self, texts: Sequence[str]) -> list[list[int]]:
        with self._lock:
            known = [self._recall(text) for text in texts]
        unknown = [text for text, ids in zip(texts, known, strict=True) if ids is None]
        if not unknown:
            return [ids for ids in known if ids is not None]
        encoded = self._tokenizer.encode_batch(unknown, add_special_tokens=False)
        with self._lock:
            for text, ids in zip(unknown, encoded, strict=True):
                self._remember(text, ids)
        fresh = iter(encoded)
        return [next(fresh) if ids is None else ids for ids in known]

    def _recall(self, text: str) -> list[int] | None:
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
        return known if text else []

    def _remember(self, text: str, ids: list[int]) -> None:
        if not _MIN_SEGMENT <= len(text) <= _MAX_SEGMENT:
            return
        if text not in self._known:
            self._chars += len(text)
        self._known[text] = ids
        while self._chars > self._max_chars:
            forgotten, _ = self._known.popitem(last=False)
            self._chars -= len(forgotten)


def _boundary(tokenizer: Tokenizer) -> str | None:
    """The token that ends a turn, where cutting there changes nothing; else None."""
    token = tokenizer.special_tokens.get("eos_token")
    if token is None or token not in tokenizer.added_tokens:
        return None
    others = [text for text in tokenizer.added_tokens if text != token]
    if any(_may_overlap(token, other) for other in others):
        return None
    return token if tokenizer.is_plain else None


def _may_overlap(token: str, other: str) -> bool:
    if token in other or other in token:
        return True
    lengths = range(1, min(len(token), len(other)))
    return any(token[-n:] == other[:n] or other[-n:] == token[:n] for n in lengths)
