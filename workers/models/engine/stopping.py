"""Decides when a choice ends: EOS, stop tokens, lengths, repetition and stop strings (03 §7.3).

Knows no tensors and no tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workers.models.engine.sampling import Repetition, Sampling


class Stopped(NamedTuple):
    finish_reason: str
    stop_reason: int | str | None = None
    by_token: bool = False
    """Whether the last token itself is the stop: it is kept, but is not part of the text."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """When one choice of one request ends."""

    eos_token_id: int | None
    """The tokenizer's own; None with `ignore_eos`."""
    stop_token_ids: frozenset[int]
    never_early: frozenset[int]
    """Tokens that may not be sampled before `min_tokens`: EOS and every stop token."""
    max_tokens: int
    min_tokens: int
    repetition: Repetition | None

    @classmethod
    def of(
        cls,
        sampling: Sampling,
        *,
        max_tokens: int,
        eos_token_id: int | None,
        more_eos_ids: Sequence[int],
    ) -> "StopRules":
        """`more_eos_ids`: those of the generation configuration beside the tokenizer's."""
        more = () if sampling.ignore_eos else more_eos_ids
        eos = {eos_token_id} if eos_token_id is not None else set[int]()
        return cls(
            eos_token_id=None if sampling.ignore_eos else eos_token_id,
            stop_token_ids=frozenset(sampling.stop_token_ids) | frozenset(more),
            never_early=frozenset(sampling.stop_token_ids) | eos | frozenset(more_eos_ids),
            max_tokens=max_tokens,
            min_tokens=sampling.min_tokens,
            repetition=sampling.repetition,
        )

    def check(self, tokens: Sequence[int]) -> Stopped | None:
        """Whether the choice ends with its newest token, stop strings apart."""
        last = tokens[-1]
        if last == self.eos_token_id:
            return Stopped("stop", by_token=True)
        if last in self.stop_token_ids:
            return Stopped("stop", last, by_token=True)
        if len(tokens) >= self.max_tokens:
            return Stopped("length")
        if len(tokens) < self.min_tokens or self.repetition is None:
            return None
        return (
            Stopped("repetition", "repetition_detected")
            if repeats(tokens, self.repetition)
            else None
        )


def repeats(tokens: Sequence[int], rule: Repetition) -> bool:
    """Whether the tail is one pattern of an allowed size, `min_count` times in a row."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        if size * rule.min_count > len(tokens):
            return False
        pairs = range(1, size * (rule.min_count - 1) + 1)
        if all(tokens[-i] == tokens[-i - size] for i in pairs):  # mostly ends at the first
            return True
    return False


class Match(NamedTuple):
    stop: str
    start: int
    end: int


def find_stop(text: str, stops: Sequence[str], *, search_from: int) -> Match | None:
    """The stop string that completes first at or after `search_from`; ties go by list order.

    A match may begin before `search_from` as long as it ends after it.
    """
    best: Match | None = None
    for stop in stops:
        start = text.find(stop, max(search_from - len(stop) + 1, 0))
        if start >= 0 and (best is None or start + len(stop) < best.end):
            best = Match(stop, start, start + len(stop))
    return best
