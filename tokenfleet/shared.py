"""What the roles of one process share: bus, store, encoder cache, the model's facts, metrics."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR

from runtime.bus import Bus, open_bus
from runtime.delivery import Delivery
from runtime.errors import SettingsError
from runtime.model_dir import ModelDirectory, read_model
from runtime.request_body import RequestBodies
from runtime.storage import BlobStore, EncoderCache
from runtime.storage.blobs import open_blobs
from runtime.storage.encoder_cache import open_encoder_cache
from runtime.telemetry import FamilyRegistry, Telemetry
from schemas.limits import ModelLimits
from schemas.topics import Topics
from tokenfleet.plan import ENGINES, Plan
from workers.models.ec_config import EcTransfer, read_ec_transfer_config
from workers.models.families import MediaFacts, describe
from workers.models.namespace import ec_namespace, processor_config

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's own name for it."""

# Documented limits that vLLM's users set as variables; everything else is a setting.
_LIMIT_VARIABLES = {
    "max_n_sequences": "VLLM_MAX_N_SEQUENCES",
    "max_stop_strings": "VLLM_MAX_STOP_STRINGS",
    "max_completion_prompts": "VLLM_MAX_COMPLETION_PROMPTS",
}


@dataclass(frozen=True, slots=True)
class Shared:
    plan: Plan
    topics: Topics
    directory: ModelDirectory
    limits: ModelLimits
    media: MediaFacts
    telemetry: Telemetry
    bus: Bus
    blobs: BlobStore
    delivery: Delivery
    bodies: RequestBodies
    encoder_cache: EncoderCache | None
    """None where this process neither encodes nor prefills nor is told of a cache."""
    scratch: Path | None
    """Removed at the end: the cache of a fleet that was not given one."""

    def close(self) -> None:
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


def open_shared(
    plan: Plan, environ: Mapping[str, str], *, wrap_bus: Callable[[Bus], Bus] = lambda bus: bus
) -> Shared:
    """Raise SettingsError where bus, store, cache or model cannot be what the plan says."""
    topics = Topics(plan.fleet.topic_prefix)
    directory = read_model(plan.model)
    media = describe(directory.path)
    ec_transfer = read_ec_transfer_config(plan.engine.ec_transfer_config)
    blobs = open_blobs(plan.fleet.store, max_memory_bytes=plan.fleet.store_memory_bytes)
    scratch = _scratch(plan, ec_transfer)
    limits = _limits(plan, directory, environ)
    bus = wrap_bus(open_bus(plan.fleet.bus, plan.fleet))
    return Shared(
        plan=plan,
        topics=topics,
        directory=directory,
        limits=limits,
        media=media,
        telemetry=_telemetry(plan, environ),
        bus=bus,
        blobs=blobs,
        delivery=Delivery(blobs, topics, bus=bus),
        bodies=RequestBodies(limits),
        encoder_cache=_encoder_cache(plan, directory, ec_transfer, scratch),
        scratch=scratch,
    )


def _telemetry(plan: Plan, environ: Mapping[str, str]) -> Telemetry:
    """Of one of several server processes: the figures of all, and nothing that is of one alone."""
    if plan.process is not None:
        return Telemetry(FamilyRegistry(Path(environ[METRICS_FOLDER])))
    telemetry = Telemetry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        telemetry.registry.register(collector)
    return telemetry


def _limits(plan: Plan, directory: ModelDirectory, environ: Mapping[str, str]) -> ModelLimits:
    return ModelLimits(
        max_model_len=directory.max_model_len,
        vocab_size=directory.vocab_size,
        served_names=directory.served_names,
        max_logprobs=plan.model.max_logprobs,
        max_num_seqs=plan.model.max_num_seqs,
        **{
            name: _whole_number(variable, environ[variable])
            for name, variable in _LIMIT_VARIABLES.items()
            if variable in environ
        },
    )


def _whole_number(variable: str, text: str) -> int:
    if not text.isdigit():
        raise SettingsError(f"{variable}={text!r} must be a whole number")
    return int(text)


def _scratch(plan: Plan, ec_transfer: EcTransfer | None) -> Path | None:
    """A fresh folder for the cache of this run, where an engine runs and no cache is named."""
    if not plan.roles & ENGINES or plan.engine.ec or ec_transfer:
        return None
    try:
        return Path(tempfile.mkdtemp(prefix="tokenfleet-ec-"))
    except OSError as error:
        raise SettingsError(f"no folder for the encoder cache: {error}; give --ec") from None


def _encoder_cache(
    plan: Plan, directory: ModelDirectory, ec_transfer: EcTransfer | None, scratch: Path | None
) -> EncoderCache | None:
    if ec_transfer is not None:  # vLLM's own layout: shared with its engines as it is
        return open_encoder_cache(ec_transfer.url, is_flat=True)
    url = plan.engine.ec or (f"directory://{quote(str(scratch))}" if scratch else None)
    has_weights = any(directory.path.glob("*.safetensors"))
    if url is None or not (has_weights or plan.roles & ENGINES):
        return None
    processing = {**processor_config(directory.path), "dtype": plan.model.dtype}
    return open_encoder_cache(url, ec_namespace(directory.path, processing))
