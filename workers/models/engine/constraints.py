"""What a request forbids its output, made ready before the engine's thread takes it.

Tokenizing words and compiling grammars takes time that depends on the caller; the thread that runs
the model has none to give away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.models.engine.structured import Constraint


@dataclass(frozen=True, slots=True)
class Constraints:
    """One request's."""

    bad_words: Sequence[Sequence[int]] = ()
    """Token sequences to avoid."""
    structured: Constraint | None = None
