"""Gets the embedding of every item of a request: from the encoder cache, else from its payload.

Knows no language model and no wire format.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.stage import Job
from runtime.storage import Embedding, EncoderCache
from schemas.ec import Descriptor, descriptor_of, descriptors
from schemas.envelope import Item, kwargs_part
from schemas.errors import ApiError, EmbeddingMissing
from schemas.mm_item import Fields
from schemas.refusals import bad_request
from workers.models.engine.facts import ModelFacts
from workers.models.engine.metadata import plain_fields
from workers.models.engine.numbers import is_finite
from workers.models.engine.protocol import Encoder, EncoderInput, PlacedItem
from workers.models.engine.rows import Runs, check_room, check_tensors, runs_of, told_rows
from workers.payloads import read_fields
from workers.prefill.prompts import Work

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
        check_room(item, embedding.shape[0], runs)
        return PlacedItem(
            item.modality, item.mm_hash, runs, embedding, metadata, by_caller=item.by_caller
        )

    async def _resolve(self, item: Item, runs: Runs) -> tuple[Embedding | None, dict[str, Any]]:
        key = (item.modality, item.key)
        if key not in self._found:
            fields = await read_fields(self._job, item)
            if item.by_caller and self._has_tensors(item):
                check_tensors(item, fields or {}, runs, self._facts)
            metadata = self._metadata(item, fields)
            self._check_metadata(item, metadata, runs)
            embedding = await self._fetch(item, fields, sum(length for _, length in runs))
            if embedding is None:
                self.missing.append(item.key)
            self._found[key] = embedding, metadata
        return self._found[key]

    def _check_metadata(self, item: Item, metadata: dict[str, Any], runs: Runs) -> None:
        """The item is as long as its placeholder, where the family's metadata tell."""
        rows = told_rows(item, metadata, self._facts, param="mm_metadata")
        if rows is not None:
            check_room(item, rows, runs)
        elif self._facts.modalities[item.modality].metadata:
            raise bad_request(f"The {item.modality} item needs mm_metadata.", "mm_metadata")

    def _has_tensors(self, item: Item) -> bool:
        return self._job.has(kwargs_part(item.modality, item.key))

    def _descriptor(self, item: Item) -> Descriptor:
        found = descriptor_of(
            self._params, key=item.key, mm_hash=item.mm_hash, content=item.content
        )
        return found or {}

    def _metadata(self, item: Item, fields: Fields | None) -> dict[str, Any]:
        """From the payload, else from what the encoder said of the item."""
        names = self._facts.modalities[item.modality].metadata
        told = self._descriptor(item).get("metadata")
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
            checksum=self._descriptor(item).get("checksum"),
            key=item.entry,
            alias="" if item.content else item.alias,
        )
        # What is no number is no embedding, whoever wrote it: it is made again, or refused.
        if embedding is not None and await asyncio.to_thread(is_finite, embedding):
            return embedding
        return await self._encode(item, fields or {}) if self._has_tensors(item) else None

    async def _encode(self, item: Item, fields: Fields) -> Embedding:
        if self._encoder is None:
            raise ApiError(
                "This server does not encode; send ec_transfer_params instead of kwargs_data.",
                param="kwargs_data",
            )
        wanted = EncoderInput(item.modality, item.mm_hash, fields, by_caller=item.by_caller)
        (embedding,) = await self._encoder.encode(
            [wanted], deadline_ms=self._job.envelope.deadline_ms
        )
        return embedding
