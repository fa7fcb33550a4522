"""What derender knows of the model it speaks for. Read once; knows no request."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

import orjson

from runtime.model_dir import ModelDirectory
from runtime.settings import ModelSettings
from schemas.limits import ModelLimits
from workers.text.parsers.message import MessageParsers
from workers.text.token_strings import TokenStrings
from workers.text.tokenizer import Tokenizer

StopScope = Literal["content", "all"]


@dataclass(frozen=True, slots=True)
class EosIds:
    """Tokens that end an output by themselves."""

    primary: int | None
    """The tokenizer's; an engine reports no `stop_reason` for it."""
    all: frozenset[int]
    """Also those of generation_config.json, which are reported."""


@dataclass(frozen=True, slots=True)
class TextModel:
    tokenizer: Tokenizer
    strings: TokenStrings
    eos: EosIds
    parsers: MessageParsers
    limits: ModelLimits
    fingerprint: str
    """`system_fingerprint` of coupled answers: changes with the version and the model's files."""
    response_role: str = "assistant"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Template variables where requests say nothing."""
    stop_scope: StopScope = "content"
    """Where stop strings count in chats whose output is parsed."""


def open_text_model(
    settings: ModelSettings,
    directory: ModelDirectory,
    limits: ModelLimits,
    response_role: str,
    tokenizer: Tokenizer | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    stop_scope: StopScope = "content",
) -> TextModel:
    """Raise SettingsError where the directory holds no usable tokenizer, or none for the parsers.

    `tokenizer` is the directory's, where it is loaded already: it takes long and much memory.
    """
    tokenizer = tokenizer or Tokenizer.from_directory(directory.path)
    return TextModel(
        tokenizer=tokenizer,
        strings=TokenStrings(tokenizer),
        eos=_eos_ids(tokenizer.eos_id, directory.generation_config.get("eos_token_id")),
        parsers=MessageParsers(
            settings.reasoning_parser,
            settings.tool_call_parser if settings.enable_auto_tool_choice else None,
            tokenizer,
        ),
        limits=limits,
        fingerprint=_fingerprint(directory.config, directory.tokenizer_config),
        response_role=response_role,
        template_kwargs=template_kwargs or {},
        stop_scope=stop_scope,
    )


def _eos_ids(primary: int | None, configured: Any) -> EosIds:
    ids = configured if isinstance(configured, list) else [configured]
    return EosIds(primary, frozenset(i for i in (*ids, primary) if isinstance(i, int)))


def _fingerprint(*facts: Mapping[str, Any]) -> str:
    text = orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)
    return f"tokenfleet-{version('tokenfleet')}-{hashlib.blake2b(text, digest_size=4).hexdigest()}"
