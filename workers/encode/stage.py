"""Encodes the items of a request, publishes them, and tells prefill where they are.

What travels to whom is the coordinator's decision; here only payloads that came are read. Knows no
tensor library.
"""

from typing import Any

import orjson

from runtime.settings import EngineSettings, ModelSettings
from runtime.stage import Job
from runtime.storage import Embedding, EncoderCache
from schemas.ec import descriptors, seed_form, vllm_form
from schemas.envelope import PROMPTS, Item
from schemas.errors import ApiError
from schemas.mm_item import Fields
from schemas.routes import Stop
from workers.encode.items import Group, groups_of, read_fields
from workers.generated import producer_response
from workers.models.engine.facts import ModelFacts
from workers.models.engine.metadata import plain_fields
from workers.models.engine.protocol import Encoder, EncoderInput

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
        found: dict[str, Any] = {}
        for group in groups_of(envelope.items):
            self._require_modality(group.item)
            found[group.item.mm_hash] = await self._publish(job, group)
            for item in group.items:
                item.encoded = True
        if found:
            envelope.ec_transfer_params = _merged(envelope.ec_transfer_params, found)
        if envelope.next_stop is Stop.REPLY:
            await self._reply(job, found)

    async def close(self) -> None:
        await self._encoder.close()

    def _require_modality(self, item: Item) -> None:
        if item.modality not in self._facts.modalities:
            raise ApiError(f"This model takes no {item.modality} items.", param="features")

    async def _publish(self, job: Job, group: Group) -> dict[str, Any]:
        """Make sure that the item's embedding can be read, and describe it."""
        fields = await read_fields(job, group.item)
        metadata = self._metadata(group.item, fields)
        embedding = await self._try_cached(group.item, metadata)
        if embedding is None:
            embedding = await self._encode(job, group, fields)
        descriptor = await self._cache.put(group.item.mm_hash, embedding)
        return {
            "modality": group.item.modality,
            "item_indices": list(group.indices),
            "metadata": {name: _listed(value) for name, value in metadata.items()},
            **descriptor,
        }

    def _metadata(self, item: Item, fields: Fields | None) -> dict[str, Any]:
        return plain_fields(fields or {}, self._facts.modalities[item.modality].metadata)

    async def _try_cached(self, item: Item, metadata: dict[str, Any]) -> Embedding | None:
        rows = self._facts.num_rows(item.modality, metadata) or item.num_embeds
        return await self._cache.get(
            item.mm_hash, rows=rows, width=self._facts.embedding_width, dtypes=FLOATS
        )

    async def _encode(self, job: Job, group: Group, fields: Fields | None) -> Embedding:
        item = group.item
        if fields is None or not group.has_kwargs(job):
            raise ApiError(
                f"{item.modality} item {group.indices[0]} needs kwargs_data: its embedding is not "
                "in the encoder cache.",
                param="kwargs_data",
            )
        wanted = EncoderInput(item.modality, item.mm_hash, fields)
        (embedding,) = await self._encoder.encode([wanted], deadline_ms=job.envelope.deadline_ms)
        return embedding

    async def _reply(self, job: Job, found: dict[str, Any]) -> None:
        """The answer of a producer, which generates nothing (03 §5)."""
        (prompt,) = await job.read_msgpack(PROMPTS)
        params = vllm_form(_announced(found)) if self._is_vllm else seed_form(found)
        answer = producer_response(
            prompt, job.envelope, self._served_name, params if found else None
        )
        job.finish([orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS)])


def _merged(sent: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """Ours over the client's; keys that are none of these hashes stay as they came."""
    known = descriptors(sent)
    return {
        **(sent or {}),
        **{mm_hash: {**known.get(mm_hash, {}), **own} for mm_hash, own in found.items()},
    }


def _announced(found: dict[str, Any]) -> dict[str, Any]:
    """What vLLM's producer tells: an address, where there is one, needs shape and size beside it."""
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
