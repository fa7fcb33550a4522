"""Structured output `choice`: which tokens keep the output a beginning of one of the given texts.

Works on bytes, so that a text may be reached by any of its tokenizations. A step costs as much as
tokens and texts have in common from where the output is, however long the texts are. Knows no
tensors.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.refusals import bad_request

MAX_BYTES = 256 * 1024
"""Of all texts of a request together, in UTF-8."""


class TokenIndex:
    """The tokens of a vocabulary by their bytes; built once and shared."""

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        ids: dict[bytes, list[int]] = {}
        for token, data in token_bytes.items():
            if data:
                ids.setdefault(data, []).append(token)
        self.bytes_of = token_bytes
        self.pieces: Sequence[bytes] = sorted(ids)
        self.ids: Sequence[Sequence[int]] = [ids[piece] for piece in self.pieces]


class State(NamedTuple):
    """Where an output is: `texts[low:high]` begin with it, and it has so many bytes."""

    low: int
    high: int
    length: int


@dataclass(frozen=True, slots=True)
class _Node:
    """Texts and pieces, by their ranges, that go on alike for `length` more bytes."""

    texts: tuple[int, int]
    pieces: tuple[int, int]
    length: int


class ChoiceGrammar:
    """One request's constraint; the state of an output is the caller's to keep."""

    def __init__(self, choices: Sequence[str], index: TokenIndex, end_ids: Collection[int]) -> None:
        """Takes as long as a first step. ApiError for more text than is looked through."""
        size = sum(map(len, choices))
        self._texts = [] if size > MAX_BYTES else sorted({choice.encode() for choice in choices})
        if size > MAX_BYTES or sum(map(len, self._texts)) > MAX_BYTES:
            raise bad_request(
                f"structured_outputs.choice has more than {MAX_BYTES} bytes together",
                "structured_outputs",
            )
        self._index = index
        self._ends = frozenset(end_ids)
        self.start = State(0, len(self._texts), 0)
        self._first = self._allowed(self.start)

    def after(self, state: State, token: int) -> State:
        """The state one token further."""
        data = self._index.bytes_of.get(token, b"")
        start, end = state.length, state.length + len(data)

        def following(text: bytes) -> bytes:
            return text[start:end]

        low = bisect_left(self._texts, data, state.low, state.high, key=following)
        high = bisect_right(self._texts, data, low, state.high, key=following)
        return State(low, high, end)

    def allowed(self, state: State) -> frozenset[int]:
        """Tokens that may follow; an end token once the output is a whole text."""
        return self._first if state == self.start else self._allowed(state)

    def _allowed(self, state: State) -> frozenset[int]:
        tokens: set[int] = set()
        if state.low < state.high and len(self._texts[state.low]) == state.length:
            tokens.update(self._ends)
        pieces = (0, len(self._index.pieces))
        nodes = [_Node((state.low, state.high), pieces, 0)]
        while nodes:
            node = nodes.pop()
            first = node.pieces[0]
            if node.length and len(self._index.pieces[first]) == node.length:
                tokens.update(self._index.ids[first])
            nodes += self._further(state, node)
        return frozenset(tokens)

    def _further(self, state: State, node: _Node) -> list[_Node]:
        """One byte further, for each that both texts and pieces go on with."""
        at, length = state.length + node.length, node.length
        (low, high), (first, last) = node.texts, node.pieces
        low += low < high and len(self._texts[low]) == at
        first += first < last and len(self._index.pieces[first]) == length
        found = []
        while low < high:
            byte = self._texts[low][at]
            end = bisect_right(self._texts, byte, low, high, key=lambda text: text[at])
            pieces = self._index.pieces
            first = bisect_left(pieces, byte, first, last, key=lambda piece: piece[length])
            stop = bisect_right(pieces, byte, first, last, key=lambda piece: piece[length])
            if first < stop:
                found.append(_Node((low, end), (first, stop), length + 1))
            low, first = end, stop
        return found
