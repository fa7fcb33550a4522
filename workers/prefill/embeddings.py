"""Gets the embedding of every item of a request: from the encoder cache, else from its payload.

Knows no language model and no wire format.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.stage import Job
from runtime.storage import Embedding, EncoderCache
from schemas.ec import descriptors
from schemas.envelope import Item, kwargs_part
from schemas.errors import ApiError, EmbeddingMissing
from schemas.mm_item import Fields
from schemas.refusals import bad_request
from workers.models.engine.facts import ModelFacts
from workers.models.engine.metadata import plain_fields
from workers.models.engine.protocol import Encoder, EncoderInput, PlacedItem
from workers.payloads import read_fields
from workers.prefill.prompts import Runs, Work, runs_of

FLOATS = ("float32", "bfloat16", "float16")


class EmbeddingSource:
    """One per process; `encoder` is for requests that bring payloads instead of embeddings."""

    def __init__(self, facts: ModelFacts, cache: EncoderCache, encoder: Encoder | None) -> None:
        self._facts = facts
        self._cache = cache
        self._encoder = encoder

    async def place(self, job: Job, works: Sequence[Work]) -> list[tuple[PlacedItem, ...]]:
        """The placed items of each prompt. EmbeddingMissing names every hash that is nowhere."""
        request = _Request(self._facts, self._cache, self._encoder, job)
        placed = [
            [await request.place(item, work.token_ids) for item in work.items] for work in works
        ]
        if request.missing:
            raise EmbeddingMissing(request.missing)
        return [tuple(item for item in of_prompt if item is not None) for of_prompt in placed]


class _Request:
    """The items of one request; the same hash is fetched once."""

    def __init__(
        self, facts: ModelFacts, cache: EncoderCache, encoder: Encoder | None, job: Job
    ) -> None:
        self._facts = facts
        self._cache = cache
        self._encoder = encoder
        self._job = job
        self._params = descriptors(job.envelope.ec_transfer_params)
        self._found: dict[tuple[str, str], tuple[Embedding | None, dict[str, Any]]] = {}
        self.missing: list[str] = []

    async def place(self, item: Item, token_ids: Sequence[int]) -> PlacedItem | None:
        if item.modality not in self._facts.modalities:
            raise bad_request(f"This model takes no {item.modality} items.")
        runs = runs_of(item, token_ids, self._facts)
        embedding, metadata = await self._resolve(item, runs)
        if embedding is None:
            return None
        _check_rows(item, embedding.shape[0], runs)
        return PlacedItem(item.modality, item.mm_hash, runs, embedding, metadata)

    async def _resolve(self, item: Item, runs: Runs) -> tuple[Embedding | None, dict[str, Any]]:
        key = (item.modality, item.mm_hash)
        if key not in self._found:
            fields = await read_fields(self._job, item)
            metadata = self._metadata(item, fields)
            self._check_metadata(item, metadata, runs)
            embedding = await self._fetch(item, fields, sum(length for _, length in runs))
            if embedding is None:
                self.missing.append(item.mm_hash)
            self._found[key] = embedding, metadata
        return self._found[key]

    def _check_metadata(self, item: Item, metadata: dict[str, Any], runs: Runs) -> None:
        """The item is as long as its placeholder, where the family's metadata tell."""
        try:
            rows = self._facts.num_rows(item.modality, metadata)
        except (TypeError, ValueError, IndexError, OverflowError):
            raise bad_request(f"{metadata} does not describe an item.", "mm_metadata") from None
        if rows is not None:
            _check_rows(item, rows, runs)
        elif self._facts.modalities[item.modality].metadata:
            raise bad_request(f"The {item.modality} item needs mm_metadata.", "mm_metadata")

    def _metadata(self, item: Item, fields: Fields | None) -> dict[str, Any]:
        """From the payload, else from what the encoder said of the item."""
        names = self._facts.modalities[item.modality].metadata
        told = self._params.get(item.mm_hash, {}).get("metadata")
        known: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        return {
            **{name: known[name] for name in names if name in known},
            **plain_fields(fields or {}, names),
        }

    async def _fetch(self, item: Item, fields: Fields | None, rows: int) -> Embedding | None:
        embedding = await self._cache.get(
            item.mm_hash,
            rows=rows,
            width=self._facts.embedding_width,
            dtypes=FLOATS,
            checksum=self._params.get(item.mm_hash, {}).get("checksum"),
        )
        if embedding is not None or not self._job.has(kwargs_part(item.modality, item.mm_hash)):
            return embedding
        return await self._encode(item, fields or {})

    async def _encode(self, item: Item, fields: Fields) -> Embedding:
        if self._encoder is None:
            raise ApiError(
                "This server does not encode; send ec_transfer_params instead of kwargs_data.",
                param="kwargs_data",
            )
        wanted = EncoderInput(item.modality, item.mm_hash, fields)
        (embedding,) = await self._encoder.encode(
            [wanted], deadline_ms=self._job.envelope.deadline_ms
        )
        return embedding


def _check_rows(item: Item, rows: int, runs: Runs) -> None:
    room = sum(length for _, length in runs)
    if rows != room:
        raise bad_request(
            f"The {item.modality} at position {item.offset} has {rows} embeddings, but its "
            f"placeholder has room for {room}.",
            "mm_placeholders",
        )
