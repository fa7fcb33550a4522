"""What the encode and prefill stages ask of an engine, as plain values.

The seam for other engines (batching, remote servers). Knows no torch, no envelope and no wire
format.
"""

from collections.abc import Mapping, Sequence
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
    wants_text: bool = False
    """Whether `Choice.text` and decoded log-probability tokens are needed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token at one position with its raw log-probability."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished continuation."""

    token_ids: tuple[int, ...]
    finish_reason: str
    """stop, length, abort or repetition."""
    stop_reason: int | str | None = None
    text: str | None = None
    logprobs: tuple[tuple[Candidate, ...], ...] | None = None
    """Per token: the sampled one first, then others by rank."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine made of one request."""

    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[tuple[Candidate, ...] | None, ...] | None = None
    """Per prompt token (the first has none): the token itself, then others by rank."""


class Engine(Protocol):
    """Continues prompts."""

    async def start(self) -> None: ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Cancelling the caller frees the slot before the next token.

        ApiError for the caller's fault or a passed deadline, Transient for lack of memory.
        """

    async def close(self) -> None: ...
