"""Loads a model directory's weights into transformers' classes, on the device there is.

Reads safetensors only, never code from the model directory, and nothing from the network. Knows no
requests.
"""

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from runtime.cores import num_cores
from runtime.errors import SettingsError
from workers.models.engine.facts import ModelFacts

logger = logging.getLogger(__name__)

_VISION = ("visual", "vision_tower", "multi_modal_projector")
_LANGUAGE = ("language_model",)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in memory; shared by encoder and language model where one process runs both."""

    module: Any  # the transformers model
    facts: ModelFacts
    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def complete_config(directory: Path) -> dict[str, Any]:
    """config.json with the defaults of its model type, which published files often leave out."""
    try:
        found = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        raise _unusable(directory, error) from error
    config: dict[str, Any] = found.to_dict()
    return config


def load_model(
    facts: ModelFacts, *, dtype: str, needs_vision: bool, needs_language: bool
) -> LoadedModel:
    """Raise SettingsError with one readable line where the directory cannot be served."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = _load(facts, _dtype(dtype))
    _drop_unused(module, needs_vision=needs_vision, needs_language=needs_language)
    module = module.to(device).eval().requires_grad_(False)
    logger.info("model_loaded", extra={"model_type": facts.model_type, "device": str(device)})
    return LoadedModel(module, facts, device, module.dtype)


def _load(facts: ModelFacts, dtype: torch.dtype | str) -> Any:
    model_class = _model_class(facts)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        module, report = model_class.from_pretrained(
            facts.directory,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise _unusable(facts.directory, error) from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would make them up
        names = ", ".join(missing[:3])
        raise SettingsError(f"model: {facts.directory} lacks {len(missing)} weights: {names} …")
    return module


def _unusable(directory: Path, error: Exception) -> SettingsError:
    cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
    reason = str(cause or error).strip().partition("\n")[0]
    return SettingsError(f"model: {directory} cannot be loaded: {reason}")


_ALIASES = {"half": "float16", "float": "float32"}


def _dtype(name: str) -> torch.dtype | str:
    if name == "auto":
        return name
    found = getattr(torch, _ALIASES.get(name, name), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SettingsError(f"dtype: {name!r} is not auto, float32, bfloat16 or float16")
    return found


def _model_class(facts: ModelFacts) -> Any:
    names = facts.config.get("architectures") or ()
    found = next((getattr(transformers, n) for n in names if hasattr(transformers, n)), None)
    if found is None:
        raise SettingsError(f"model: architecture {list(names)} is not known to transformers")
    return found


def _drop_unused(module: Any, *, needs_vision: bool, needs_language: bool) -> None:
    """Free the half that this process does not run. Text-only models have one half only."""
    inner = getattr(module, "model", None)
    unused = (() if needs_vision else _VISION) + (() if needs_language else _LANGUAGE)
    for name in unused:
        if inner is not None and name in inner._modules:
            inner._modules[name] = None
    if not needs_language and inner is not None and any(n in inner._modules for n in _VISION):
        module.lm_head = None


def use_threads(count: int | None) -> None:
    """torch's threads within an operation, for the whole process; None: half of its cores.

    torch's own choice, all of them, waits at every operation for a thread that has lost its core to
    somebody else: an order of magnitude on a machine that does anything besides.
    """
    torch.set_num_threads(count or max(num_cores() // 2, 1))


def cache_argument(module: Any) -> str:
    """What `forward` calls the key-value cache: transformers renamed it within version 5."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
