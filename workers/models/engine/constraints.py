"""What a request forbids its output, made ready before the engine's thread takes it.

Tokenizing words and looking through choices takes time that depends on the caller; the thread that
runs the model has none to give away. Knows no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.models.engine.choices import ChoiceGrammar
from workers.models.engine.facts import ModelFacts
from workers.models.engine.sampling import Sampling
from workers.models.engine.tokens import TextSource


@dataclass(frozen=True, slots=True)
class Constraints:
    """One request's."""

    bad_words: Sequence[Sequence[int]] = ()
    grammar: ChoiceGrammar | None = None

    @classmethod
    def of(
        cls, sampling: Sampling, facts: ModelFacts, source: TextSource | None
    ) -> "Constraints":
        """Blocking. ApiError for words and choices that are more than this engine takes."""
        if source is None:
            return cls()
        grammar = None
        if sampling.choice is not None:
            ends = [] if facts.eos_token_id is None else [facts.eos_token_id]
            grammar = ChoiceGrammar(
                sampling.choice, source.token_index, [*ends, *facts.more_eos_ids]
            )
        return cls(source.bad_words(sampling.bad_words), grammar)


def takes_time(sampling: Sampling) -> bool:
    """Whether making them is worth a thread."""
    return bool(sampling.bad_words) or sampling.choice is not None
