"""Reads the JSON files of a model directory: what a role must know of a model without loading it.

Knows no weights, no tokenizer and no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import SettingsError
from runtime.settings import ModelSettings

# Keys that hold the context length, as transformers' configurations name them.
_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
# Rotary types whose configured length is scaled already.
_SCALED_ROPE_TYPES = {"su", "longrope", "llama3", "yarn", "default"}
_FALLBACK_LENGTH = 2048
# What published configurations leave out because it is transformers' default of their type.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {"vocab_size": 262208, "max_position_embeddings": 131072},
    "llama": {"vocab_size": 32000, "max_position_embeddings": 2048},
    "qwen2": {"vocab_size": 151936, "max_position_embeddings": 32768},
    "qwen2_vl_text": {"vocab_size": 152064, "max_position_embeddings": 32768},
    "qwen2_5_vl_text": {"vocab_size": 152064, "max_position_embeddings": 32768},
    "qwen3": {"vocab_size": 151936, "max_position_embeddings": 32768},
    "qwen3_vl_text": {"vocab_size": 151936, "max_position_embeddings": 128000},
}


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """The model as its files describe it."""

    name: str
    """The model argument exactly as typed: it enters every hash (02 §2.1)."""
    path: Path
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    max_model_len: int
    vocab_size: int
    served_names: tuple[str, ...]

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))


def read_model(settings: ModelSettings) -> ModelDirectory:
    """Raise SettingsError where the directory is missing, broken or contradicts the settings."""
    path = Path(settings.model).expanduser()
    if not path.is_dir():
        raise SettingsError(
            f"model {settings.model!r} is not a directory; give the path of a model directory"
            " (nothing is downloaded)"
        )
    config = _read_json(path / "config.json", required=True)
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    return ModelDirectory(
        name=settings.model,
        path=path.resolve(),
        config=config,
        tokenizer_config=tokenizer_config,
        generation_config=_read_json(
            _generation_config_folder(settings, path) / "generation_config.json"
        ),
        max_model_len=_max_model_len(config, tokenizer_config, settings.max_model_len),
        vocab_size=int(_text_config(config).get("vocab_size", config.get("vocab_size", 0))),
        served_names=settings.served_model_name or (settings.model,),
    )


def _generation_config_folder(settings: ModelSettings, path: Path) -> Path:
    chosen = settings.generation_config
    return path if chosen in ("auto", "vllm") else Path(chosen).expanduser()


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    text = nested if isinstance(nested, Mapping) else config
    return {**_DEFAULTS.get(str(text.get("model_type")), {}), **text}


def _max_model_len(
    config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], asked: int | None
) -> int:
    """As vllm.config.model `_get_and_verify_max_len` derives it."""
    text = _text_config(config)
    lengths = [int(text[key]) for key in _LENGTH_KEYS if isinstance(text.get(key), int)]
    limit = float(min(lengths, default=_FALLBACK_LENGTH))
    tokenizer_limit = tokenizer_config.get("model_max_length")
    if isinstance(tokenizer_limit, int | float):
        limit = min(limit, tokenizer_limit)
    if "gemma3" not in str(config.get("model_type")):
        limit *= _rope_factor(text)
    if asked is None:
        return int(limit)
    if asked > limit:
        raise SettingsError(
            f"--max-model-len {asked} is greater than the {int(limit)} that config.json allows"
        )
    return asked


def _rope_factor(text: Mapping[str, Any]) -> float:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        return 1.0
    kind = rope.get("rope_type", rope.get("type", "default"))
    return 1.0 if kind in _SCALED_ROPE_TYPES else float(rope.get("factor") or 1.0)


def _read_json(path: Path, *, required: bool = False) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise SettingsError(f"{path} is missing: not a model directory") from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{path} must hold a JSON object")
    return value
