"""What derender knows of the model it speaks for. Read once; knows no request."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import orjson

from runtime.model_dir import ModelDirectory
from runtime.settings import ModelSettings
from schemas.limits import ModelLimits
from workers.text.token_strings import TokenStrings
from workers.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EosIds:
    """Tokens that end an output by themselves."""

    primary: int | None
    """The tokenizer's; an engine reports no `stop_reason` for it."""
    all: frozenset[int]
    """Also those of generation_config.json, which are reported."""


@dataclass(frozen=True, slots=True)
class Parsers:
    """Output parsers the deployment is set up with."""

    reasoning: str | None = None
    tools: str | None = None
    """None as well where `--enable-auto-tool-choice` is missing."""

    @property
    def is_any(self) -> bool:
        return self.reasoning is not None or self.tools is not None


@dataclass(frozen=True, slots=True)
class TextModel:
    tokenizer: Tokenizer
    strings: TokenStrings
    eos: EosIds
    parsers: Parsers
    limits: ModelLimits
    fingerprint: str
    """`system_fingerprint` of coupled answers: changes with the version and the model's files."""
    response_role: str = "assistant"


def open_text_model(
    settings: ModelSettings,
    directory: ModelDirectory,
    limits: ModelLimits,
    response_role: str,
    tokenizer: Tokenizer | None = None,
) -> TextModel:
    """Raise SettingsError where the directory holds no usable tokenizer.

    `tokenizer` is the directory's, where it is loaded already: it takes long and much memory.
    """
    tokenizer = tokenizer or Tokenizer.from_directory(directory.path)
    return TextModel(
        tokenizer=tokenizer,
        strings=TokenStrings(tokenizer),
        eos=_eos_ids(tokenizer.eos_id, directory.generation_config.get("eos_token_id")),
        parsers=Parsers(
            settings.reasoning_parser,
            settings.tool_call_parser if settings.enable_auto_tool_choice else None,
        ),
        limits=limits,
        fingerprint=_fingerprint(directory.config, directory.tokenizer_config),
        response_role=response_role,
    )


def _eos_ids(primary: int | None, configured: Any) -> EosIds:
    ids = configured if isinstance(configured, list) else [configured]
    return EosIds(primary, frozenset(i for i in (*ids, primary) if isinstance(i, int)))


def _fingerprint(*facts: Mapping[str, Any]) -> str:
    text = orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)
    return f"tokenfleet-{version('tokenfleet')}-{hashlib.blake2b(text, digest_size=4).hexdigest()}"
