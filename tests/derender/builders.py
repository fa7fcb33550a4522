"""Stages over the recorded tokenizers, and requests for them."""

import json
from typing import Any

import msgpack

from runtime.model_dir import read_model
from runtime.settings import ModelSettings
from runtime.stage import Job
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import REQUEST, Envelope, now_ms
from schemas.limits import ModelLimits
from schemas.routes import Kind
from workers.derender.model import TextModel, open_text_model
from workers.derender.stage import DerenderStage

from .recordings import DATA

QWEN, LLAVA = "tiny-qwen3-vl", "tiny-llava"


def settings_for(model: str, **options: Any) -> ModelSettings:
    return ModelSettings(model=str(DATA / "models" / model), served_model_name=(model,), **options)


def limits_for(settings: ModelSettings) -> ModelLimits:
    directory = read_model(settings)
    return ModelLimits(
        max_model_len=directory.max_model_len,
        vocab_size=directory.vocab_size,
        served_names=directory.served_names,
        max_logprobs=settings.max_logprobs,
    )


def make_model(model: str, **options: Any) -> TextModel:
    settings = settings_for(model, **options)
    return open_text_model(settings, read_model(settings), limits_for(settings), "assistant")


async def make_stage(model: str, *, response_role: str = "assistant", **options: Any):
    settings = settings_for(model, **options)
    stage = DerenderStage(settings, limits_for(settings), response_role=response_role)
    await stage.start()
    return stage


def make_job(kind: Kind, body: Any, **parts: Any) -> Job:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    now = int(now_ms())
    packed = {name: msgpack.packb(value) for name, value in parts.items()}
    envelope = Envelope(
        id="0" * 32,
        kind=kind,
        created_ms=now,
        deadline_ms=now + 10_000,
        parts={REQUEST: raw, **packed},
    )
    return Job(envelope, MemoryBlobs())


async def answer(stage: DerenderStage, kind: Kind, body: Any, **parts: Any) -> Any:
    job = make_job(kind, body, **parts)
    await stage.process(job)
    assert job.envelope.outcome is not None
    return json.loads(b"".join(job.envelope.outcome.segments))


def prompt(ids: list[int], text: str | None = None, **sampling: Any) -> dict[str, Any]:
    """An entry of the part that render writes."""
    return {
        "request_id": "chatcmpl-1",
        "token_ids": ids,
        "sampling_params": {"stop": [], **sampling},
        "prompt_text": text,
    }


def generated(*outputs: list[int], finish_reason: str = "length", **fields: Any) -> dict[str, Any]:
    """An entry of the part that prefill writes."""
    choices = [
        {"index": index, "token_ids": ids, "finish_reason": finish_reason, **fields}
        for index, ids in enumerate(outputs)
    ]
    return {"request_id": "generate-tokens-1", "choices": choices}
