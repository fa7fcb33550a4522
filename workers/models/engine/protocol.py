"""What the encode and prefill stages ask of an engine, as plain values.

The seam for other engines (batching, remote servers). Knows no torch, no envelope and no wire
format.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.storage import Embedding
from schemas.mm_item import Field
from workers.models.engine.sampling import Sampling


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """One multimodal item to encode."""

    modality: str
    mm_hash: str
    fields: Mapping[str, Field]
    """`schemas.mm_item` fields by name."""
    by_caller: bool = False
    """Its numbers are the caller's: whether what comes of them is the caller's fault or ours."""


class Encoder(Protocol):
    """A vision (or audio) tower."""

    async def start(self) -> None: ...

    async def encode(self, items: Sequence[EncoderInput], *, deadline_ms: float) -> list[Embedding]:
        """One embedding per item, in order, all numbers finite.

        ApiError where an item is not what the tower takes.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An encoded item and the prompt positions that its rows replace."""

    modality: str
    mm_hash: str
    runs: tuple[tuple[int, int], ...]
    """(start, length) in the prompt, ascending; lengths add up to the embedding's rows."""
    embedding: Embedding
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Placeholder metadata as plain lists and numbers, e.g. image_grid_thw [t, h, w]."""
    by_caller: bool = False
    """Its numbers are the caller's."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it, everything resolved and checked."""

    request_id: str
    token_ids: tuple[int, ...]
    items: tuple[PlacedItem, ...]
    sampling: Sampling
    max_tokens: int
    """Tokens to generate at most; prompt and output together fit the context."""
    seeds: tuple[int, ...]
    """One per choice."""
    deadline_ms: float
    constrained_after: frozenset[int] = frozenset()
    """Structured outputs bind behind the first of these tokens; empty: from the start."""
    wants_text: bool = False
    """Whether `Choice.text` and decoded log-probability tokens are needed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token at one position with its raw log-probability."""

    token_id: int
    logprob: float
    rank: int


Row = tuple[Candidate, ...]
"""One position's candidates: the sampled token first, then others by rank."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended."""

    reason: str
    """stop, length, abort or repetition."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for the tokenizer's own EOS."""


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """What one choice has grown by."""

    choice: int
    token_ids: tuple[int, ...]
    logprobs: tuple[Row, ...] = ()
    """One row per token where they are asked for, else none."""
    text: str = ""
    """Text that is certain now, where text is asked for: a possible stop string waits."""
    finish: Finish | None = None
    """Set in the last delta of the choice."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What an engine has made since it last said something."""

    deltas: tuple[TokenDelta, ...]
    prompt_logprobs: tuple[Row | None, ...] | None = None
    """Where they are asked for, in the first one that has deltas; the first token has no row."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation, as far as it has come."""

    token_ids: tuple[int, ...]
    finish: Finish | None = None
    """None while it grows."""
    text: str = ""
    logprobs: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine has made of one request so far."""

    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[Row | None, ...] | None = None


class Engine(Protocol):
    """Continues prompts."""

    async def start(self) -> None: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Progress, None]:
        """Deltas of all choices as they come; a slow reader gets fewer and larger ones.

        Closing the generator frees the slot before the next token. ApiError for the caller's fault
        or a passed deadline, Transient for lack of memory.
        """

    async def close(self) -> None: ...


class GrowingGeneration:
    """The sum of an engine's progress: one per request."""

    def __init__(self, num_choices: int) -> None:
        self._tokens: list[list[int]] = [[] for _ in range(num_choices)]
        self._rows: list[list[Row]] = [[] for _ in range(num_choices)]
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._finishes: list[Finish | None] = [None] * num_choices
        self._prompt_logprobs: tuple[Row | None, ...] | None = None

    def add(self, progress: Progress) -> None:
        if progress.prompt_logprobs is not None:
            self._prompt_logprobs = progress.prompt_logprobs
        for delta in progress.deltas:
            self._tokens[delta.choice].extend(delta.token_ids)
            self._rows[delta.choice].extend(delta.logprobs)
            self._texts[delta.choice].append(delta.text)
            self._finishes[delta.choice] = delta.finish

    def num_tokens(self, choice: int) -> int:
        return len(self._tokens[choice])

    def so_far(self) -> Generation:
        parts = zip(self._tokens, self._finishes, self._texts, self._rows, strict=True)
        return Generation(
            choices=tuple(
                Choice(tuple(tokens), finish, "".join(texts), tuple(rows))
                for tokens, finish, texts, rows in parts
            ),
            prompt_logprobs=self._prompt_logprobs,
        )
