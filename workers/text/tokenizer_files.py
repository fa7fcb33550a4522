"""Reads a tokenizer's files the way Hugging Face's fast tokenizers do, without their library.

Gives plain data; builds no tokenizer and knows no request.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runtime.errors import SettingsError

NAMED_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
# Classes that transformers builds from the vocabulary alone: what tokenizer.json says of
# normalization and pre-tokenization does not count.
_LLAMA_CLASSES = {"LlamaTokenizer", "LlamaTokenizerFast"}
# Model types whose directories name such a class wrongly; there tokenizer.json counts.
_NOT_LLAMA = {
    "arctic", "ernie4_5", "fuyu", "internlm2", "internlm3", "jamba", "llava", "llava_next",
    "minicpm3", "minicpmv", "ministral", "ministral3", "mistral", "mistral3", "mixtral", "molmo",
    "nemotron", "phi3", "phi3_v", "phimoe", "pixtral", "vipllava", "voxtral",
}  # fmt: skip
# Templates of a tokenizer may have names; this one is taken where nothing asks for another.
DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files of one directory say."""

    backend: dict[str, Any]
    """tokenizer.json, adjusted as its class would."""
    added: tuple[Mapping[str, Any], ...]
    """Added tokens that tokenizer.json may lack, as keyword arguments of AddedToken."""
    special_tokens: Mapping[str, str]
    """By name (`bos_token`, `image_token` …), as chat templates see them."""
    extra_special_tokens: tuple[str, ...]
    """Special tokens that have no name."""
    chat_templates: Mapping[str, str]
    processor_template: str | None
    """What a multimodal processor brings (chat_template.json, processor_config.json)."""
    model_max_length: int | None
    clean_up_spaces: bool
    """Whether decoded text gets its spaces before punctuation removed (never for BPE)."""


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Raise SettingsError where the directory holds no usable fast tokenizer."""
    config = _read_json(folder / "tokenizer_config.json") or {}
    backend = _read_json(folder / "tokenizer.json")
    if backend is None:
        raise SettingsError(
            f"{folder} has no tokenizer.json; convert its tokenizer once with"
            " transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    config = _with_special_tokens_map(config, folder)
    model_type = (_read_json(folder / "config.json") or {}).get("model_type")
    return TokenizerFiles(
        backend=_adjust(backend, config, model_type),
        added=_added_tokens(config),
        special_tokens=_special_tokens(config),
        extra_special_tokens=tuple(filter(None, map(_content, _extra_tokens(config)))),
        chat_templates=_chat_templates(folder, config),
        processor_template=_processor_template(folder),
        model_max_length=_length(config.get("model_max_length")),
        clean_up_spaces=_cleans_up(backend, config),
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{path} must hold a JSON object")
    return value


def _with_special_tokens_map(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Older directories keep the named tokens in a file of their own."""
    if "added_tokens_decoder" in config:
        return config
    return config | (_read_json(folder / "special_tokens_map.json") or {})


def _content(token: Any) -> str | None:
    """A token is written as its text or as an object with flags."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {key: config.get(key) for key in NAMED_TOKENS}
    named |= {
        key: value
        for key, value in config.items()
        if key.endswith("_token") and not isinstance(value, bool)
    }
    extra = config.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        named |= extra
    return {key: text for key, token in named.items() if (text := _content(token)) is not None}


def _extra_tokens(config: Mapping[str, Any]) -> list[Any]:
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    return list(extra) if isinstance(extra, list) else []


def _added_tokens(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Tokens with flags first, in the order of their ids, then the named ones."""
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    decoder = config.get("added_tokens_decoder") or {}
    tokens = [
        {key: entry[key] for key in flags if key in entry}
        for _, entry in sorted(decoder.items(), key=lambda item: int(item[0]))
    ]
    named = [*_special_tokens(config).values(), *map(_content, _extra_tokens(config))]
    tokens += [{"content": text, "special": True, "normalized": False} for text in named if text]
    return tuple({token["content"]: token for token in reversed(tokens)}.values())[::-1]


def _adjust(
    backend: dict[str, Any], config: Mapping[str, Any], model_type: str | None
) -> dict[str, Any]:
    backend = backend | {"truncation": None, "padding": None}
    is_llama = config.get("tokenizer_class") in _LLAMA_CLASSES and model_type not in _NOT_LLAMA
    if is_llama and _is_sentencepiece(backend):
        return backend | _llama_parts(backend, config)
    return backend


def _is_sentencepiece(backend: Mapping[str, Any]) -> bool:
    parts = json.dumps([backend.get("normalizer"), backend.get("pre_tokenizer")])
    return backend["model"].get("type") == "BPE" and "\\u2581" in parts


def _llama_parts(backend: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    prefix = config.get("add_prefix_space")
    prefix = True if prefix is None else bool(prefix)
    legacy = bool(config.get("legacy", False))
    scheme = ("always" if legacy else "first") if prefix else "never"
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    metaspace = {"replacement": "▁", "prepend_scheme": scheme, "split": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", **metaspace},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": backend["model"] | {"fuse_unk": True, "byte_fallback": True, "dropout": None},
    }


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files win over tokenizer_config.json."""
    templates = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    main = folder / "chat_template.jinja"
    if main.is_file():
        templates[DEFAULT_TEMPLATE] = main.read_text(encoding="utf-8")
    if templates:
        return templates
    given = config.get("chat_template")
    if isinstance(given, str):
        return {DEFAULT_TEMPLATE: given}
    entries = given if isinstance(given, list) else []
    return {entry["name"]: entry["template"] for entry in entries}


def _processor_template(folder: Path) -> str | None:
    for name in ("chat_template.json", "processor_config.json"):
        template = (_read_json(folder / name) or {}).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _cleans_up(backend: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return bool(config.get("clean_up_tokenization_spaces")) and backend["model"]["type"] != "BPE"


def _length(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < 2**62 else None
