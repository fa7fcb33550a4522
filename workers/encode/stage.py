"""Encodes the items of a request, publishes them, and tells prefill where they are.

What travels to whom is the coordinator's decision; here only payloads that came are read. Knows no
tensor library.
"""

from typing import Any

import orjson

from runtime.settings import EngineSettings, ModelSettings
from runtime.stage import Job
from runtime.storage import Embedding, EncoderCache
from schemas.ec import (
    CONTENT_KEY,
    LIST_KEY,
    Descriptor,
    descriptor_of,
    descriptors,
    seed_form,
    vllm_form,
)
from schemas.envelope import PROMPTS, Item
from schemas.errors import ApiError
from schemas.mm_item import Fields
from schemas.routes import Stop
from workers.encode.items import Group, groups_of
from workers.generated import producer_response
from workers.models.engine.facts import ModelFacts
from workers.models.engine.metadata import plain_fields
from workers.models.engine.protocol import Encoder, EncoderInput
from workers.models.engine.rows import check_tensors, runs_of
from workers.payloads import read_fields

FLOATS = ("float32", "bfloat16", "float16")
_PRODUCER_KEYS = ("item_indices", "metadata")
_PEER_KEYS = ("peer_host", "peer_port", "size_bytes", "shape")


class EncodeStage:
    """One per process. Safe to repeat: an item that is in the cache is not encoded again."""

    stop = Stop.ENCODE

    def __init__(
        self,
        model: ModelSettings,
        engine: EngineSettings,
        encoder: Encoder,
        cache: EncoderCache,
        facts: ModelFacts,
    ) -> None:
        self._served_name = (model.served_model_name or (model.model,))[0]
        self._is_vllm = engine.ec_params_format == "vllm"
        self._encoder = encoder
        self._cache = cache
        self._facts = facts

    async def start(self) -> None:
        await self._encoder.start()

    async def process(self, job: Job) -> None:
        envelope = job.envelope
        sent = envelope.ec_transfer_params or {}
        known = descriptors(sent)
        found: dict[str, Descriptor] = {}
        for group in groups_of(envelope.items):
            item = group.item
            sent_of = descriptor_of(known, key=item.key, mm_hash=item.mm_hash, content=item.content)
            # By its hash; one that means several contents stands for the first.
            name = item.key if item.mm_hash in found else item.mm_hash
            found[name] = await self._describe(job, group, sent_of or {})
            for placed in group.items:
                placed.encoded = True
        # Keys that are no descriptors stay as the client sent them.
        others = {key: value for key, value in sent.items() if key != LIST_KEY}
        envelope.ec_transfer_params = {**others, **known, **found} or None
        if envelope.next_stop is Stop.REPLY:
            await self._reply(job, found)

    async def close(self) -> None:
        await self._encoder.close()

    def _require_modality(self, item: Item) -> None:
        if item.modality not in self._facts.modalities:
            raise ApiError(f"This model takes no {item.modality} items.", param="features")

    async def _describe(self, job: Job, group: Group, known: Descriptor) -> Descriptor:
        """The item's entry once its embedding can be read; what the client knew of it stays."""
        self._require_modality(group.item)
        fields = await read_fields(job, group.item) or {}
        if group.item.by_caller and group.has_kwargs(job):
            await self._check_room(job, group, fields)
        metadata = plain_fields(fields, self._facts.modalities[group.item.modality].metadata)
        published = await self._publish(job, group, fields, metadata)
        listed = {name: _listed(value) for name, value in metadata.items()}
        return {
            **known,
            "modality": group.item.modality,
            "item_indices": list(group.indices),
            **({CONTENT_KEY: group.item.content} if group.item.content else {}),
            "metadata": listed or known.get("metadata", {}),
            **published,
        }

    async def _check_room(self, job: Job, group: Group, fields: Fields) -> None:
        """A caller's tensors make what their placeholders hold, or are not encoded at all."""
        prompts = await job.read_msgpack(PROMPTS)
        for item in group.items:
            runs = runs_of(item, prompts[item.prompt]["token_ids"], self._facts)
            check_tensors(item, fields, runs, self._facts)

    async def _publish(
        self, job: Job, group: Group, fields: Fields, metadata: dict[str, Any]
    ) -> Descriptor:
        """Make sure that the embedding can be read; return what the cache says of it."""
        if group.item.encoded:
            return {}
        if not group.has_kwargs(job):
            await self._require_cached(group)
            return {}
        # An entry that prefill could not use may look whole from here: it is made anew.
        is_heal = job.envelope.heals > 0
        embedding = None if is_heal else await self._try_cached(group.item, metadata)
        if embedding is None:
            embedding = await self._encode(group, fields, job.envelope.deadline_ms)
        item = group.item
        return await self._cache.put(
            item.mm_hash, embedding, key=item.entry, alias=item.alias, replace=is_heal
        )

    async def _require_cached(self, group: Group) -> None:
        if not await self._cache.contains(group.item.mm_hash, key=group.item.entry):
            raise ApiError(
                f"{group.item.modality} item {group.indices[0]} needs kwargs_data: its embedding "
                "is not in the encoder cache.",
                param="kwargs_data",
            )

    async def _try_cached(self, item: Item, metadata: dict[str, Any]) -> Embedding | None:
        try:
            rows = self._facts.num_rows(item.modality, metadata) or item.num_embeds
        except (TypeError, ValueError, IndexError, OverflowError):
            return None  # the tower says what is wrong with it
        return await self._cache.get(
            item.mm_hash,
            rows=rows,
            width=self._facts.embedding_width,
            dtypes=FLOATS,
            key=item.entry,
        )

    async def _encode(self, group: Group, fields: Fields, deadline_ms: float) -> Embedding:
        item = group.item
        wanted = EncoderInput(item.modality, item.mm_hash, fields, by_caller=item.by_caller)
        try:
            (embedding,) = await self._encoder.encode([wanted], deadline_ms=deadline_ms)
        except ApiError as error:
            if error.status == 400:
                error.message = f"{group.item.modality} item {group.indices[0]}: {error.message}"
            raise
        return embedding

    async def _reply(self, job: Job, found: dict[str, Descriptor]) -> None:
        """The answer of a producer, which generates nothing (03 §5)."""
        (prompt,) = await job.read_msgpack(PROMPTS)
        params = vllm_form(_announced(found)) if self._is_vllm else seed_form(found)
        answer = producer_response(
            prompt, job.envelope, self._served_name, params if found else None
        )
        job.finish([orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS)])


def _announced(found: dict[str, Descriptor]) -> dict[str, Descriptor]:
    """What vLLM's producer tells; shape and size only beside an address."""
    return {
        mm_hash: {
            name: value
            for name, value in entry.items()
            if name in _PRODUCER_KEYS or ("peer_host" in entry and name in _PEER_KEYS)
        }
        for mm_hash, entry in found.items()
    }


def _listed(value: Any) -> Any:
    """Metadata is told with at least one dimension (05 §2)."""
    return value if isinstance(value, list) else [value]
