"""Stages of a tiny model in this process, and jobs for them as the coordinator would send them."""

import gzip
import json
import time
from pathlib import Path

from coordinator.admission import plan
from coordinator.features import take_features
from coordinator.payloads import apply_leg
from coordinator.rules import Leg
from runtime.settings import EngineSettings, ModelSettings
from runtime.stage import Job
from runtime.storage.encoder_cache import open_encoder_cache
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.checks import check_request
from schemas.envelope import Envelope, now_ms
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.routes import Kind, Stop
from schemas.validation import parse_body
from workers.encode.stage import EncodeStage
from workers.models.engine.assembly import create_engines
from workers.prefill.stage import PrefillStage

DATA = Path(__file__).resolve().parent.parent / "data"
MODELS = DATA / "models"


def recorded_cases():
    return json.loads(gzip.decompress((DATA / "generate.json.gz").read_bytes()))


def soon(seconds=60.0):
    """A deadline."""
    return time.time() * 1000 + seconds * 1000


class Fleet:
    """Encode and prefill of one model over one encoder cache, without a bus."""

    def __init__(self, model, cache_folder, *, ec_params_format="vllm", served_name=None):
        self.settings = ModelSettings(
            model=str(model),
            served_model_name=(served_name or Path(model).name,),
            max_model_len=4096,
            dtype="float32",
        )
        engine = EngineSettings(engine_threads=1, ec_params_format=ec_params_format)
        self.engines = create_engines(self.settings, engine, encodes=True, generates=True)
        self.facts = self.engines.facts
        self.limits = ModelLimits(
            max_model_len=self.facts.max_model_len,
            vocab_size=self.facts.vocab_size,
            served_names=self.settings.served_model_name,
        )
        self.blobs = MemoryBlobs()
        self.cache = open_encoder_cache(f"directory://{cache_folder}")
        self.encode = EncodeStage(
            self.settings, engine, self.engines.encoder, self.cache, self.facts
        )
        self.prefill = PrefillStage(
            self.settings,
            engine,
            self.engines.engine,
            self.cache,
            facts=self.facts,
            limits=self.limits,
            source=self.engines.source,
            encoder=self.engines.encoder,
            reasoning=self.engines.reasoning,
        )
        self.metadata_modalities = frozenset(
            name for name, layout in self.facts.modalities.items() if layout.metadata
        )

    async def start(self):
        await self.encode.start()
        await self.prefill.start()

    async def close(self):
        await self.prefill.close()
        await self.encode.close()

    async def admit(self, body, stage=None, **fields):
        """The job of a generate body, as it arrives at its first stop."""
        raw = json.dumps(body).encode()
        parsed = parse_body(Kind.GENERATE, raw, self.limits)
        check_request(Kind.GENERATE, parsed, self.limits)
        envelope = Envelope(
            **{
                "id": "request-1",
                "kind": Kind.GENERATE,
                "pin": stage,
                "created_ms": int(now_ms()),
                "deadline_ms": int(soon()),
                "route": plan(Kind.GENERATE, parsed, stage),
                **fields,
            }
        )
        job = Job(envelope, self.blobs)
        await take_features(job, parsed, raw)
        leg = Leg.ENCODE if envelope.stop is Stop.ENCODE else Leg.PREFILL_DIRECT
        await apply_leg(job, leg, self.metadata_modalities)
        return job

    async def run(self, job):
        """Through the rest of its route; the answer's status and body."""
        envelope = job.envelope
        while envelope.stop is not Stop.REPLY:
            if envelope.stop is Stop.COORDINATE:
                await apply_leg(job, Leg.PREFILL_ENCODED, self.metadata_modalities)
            else:
                stage = self.encode if envelope.stop is Stop.ENCODE else self.prefill
                await stage.process(job)
            envelope.at += 1
        return envelope.outcome.status, json.loads(b"".join(envelope.outcome.segments))

    async def ask(self, body, stage=None, **fields):
        try:
            return await self.run(await self.admit(body, stage, **fields))
        except ApiError as error:
            return error.status, error.body()


def text_body(**sampling):
    """A greedy text request for tiny-qwen3-vl."""
    return {
        "token_ids": [2001, 368, 81, 198, 17, 45, 99, 2002, 198],
        "sampling_params": {"temperature": 0, "max_tokens": 6, **sampling},
    }


def image_body(*, images=1):
    """A recorded request with one or two images, full payloads and metadata."""
    name = "mm-full-return-ids" if images == 2 else "render-roundtrip"
    (case,) = [case for case in recorded_cases() if case["id"] == name]
    return json.loads(json.dumps(case["request"]))


def without_payload(body):
    """What a coordinator sends to prefill: metadata only."""
    features = {k: v for k, v in body["features"].items() if k != "kwargs_data"}
    return {**body, "features": features}
