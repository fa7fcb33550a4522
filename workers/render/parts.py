"""One content part of a message, read as 01-render §4.2 says: text, a medium or a reference.

Knows neither the conversation around it nor what becomes of a medium.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import ApiError
from schemas.parts import MEDIA_KEYS, REFERENCE, TEXT_KEYS
from schemas.refusals import bad_request
from workers.render.media import MediaPart

Extra = Mapping[str, Any]
"""Keys of a part that no part type defines: a template may look at them."""


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReferencePart:
    """A `tool_reference`, passed through for the template."""

    name: str | None


@dataclass(frozen=True, slots=True)
class MediumPart:
    media: tuple[MediaPart, ...]
    """One medium, or a video and the embeddings of its sound."""
    extra: Extra


Part = TextPart | ReferencePart | MediumPart

# Text whose value is null is left out; the others are required to be there.
_SKIPPED_WHEN_NULL = ("text", "refusal", "input_text", "output_text")
_URLS = {"image_url": "image", "audio_url": "audio", "video_url": "video"}
_EMBEDS = {"image_embeds": "image", "audio_embeds": "audio", "video_embeds": "video"}
_BY_KEY = (*MEDIA_KEYS, REFERENCE)
_TYPES = frozenset(_BY_KEY) | TEXT_KEYS.keys() | {"input_image"}
_KNOWN_KEYS = _TYPES | {"type", "uuid", "name", "data", "file", "closed", "detail", "file_id"}
_DETAILS = ("auto", "low", "high", "original")


def read_part(part: Any) -> Part | None:
    """None for a text that is null. Raise ApiError for what is no content part."""
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, Mapping):
        raise ApiError("A content part must be an object or a string.")
    kind = part.get("type")
    uuid = part.get("uuid")
    if isinstance(kind, str) and kind in _TYPES and uuid is None:
        return _by_type(kind, part)
    if kind is None or uuid is not None:
        return _by_key(kind, part, None if uuid is None else str(uuid))
    if not isinstance(kind, str):
        raise bad_request("Invalid 'type' field in multimodal part.", "type")
    raise _unknown_type(kind)


def _by_type(kind: str, part: Mapping[str, Any]) -> Part | None:
    if kind in TEXT_KEYS:
        return _text(kind, part)
    if kind == "input_image":
        return _medium(part, "image", "url", "image_url", _input_image_url(part))
    if kind in _URLS:
        return _medium(part, _URLS[kind], "url", kind, _url_object(kind, part))
    return _READERS[kind](kind, part, None)


def _by_key(kind: Any, part: Mapping[str, Any], uuid: str | None) -> Part:
    for key in _BY_KEY:
        if key not in part or (key == "audio_embeds" and kind == "video_embeds"):
            continue
        if key in _URLS:
            value = part[key]
            url = value.get("url") if isinstance(value, Mapping) else value
            return _medium(part, _URLS[key], "url", key, _optional_text(key, url), uuid)
        return _READERS[key](key, part, uuid)
    raise bad_request("Missing 'type' field in multimodal part.", "type")


def _text(kind: str, part: Mapping[str, Any]) -> TextPart | None:
    text = part.get(TEXT_KEYS[kind])
    if text is None and kind in _SKIPPED_WHEN_NULL:
        return None
    if not isinstance(text, str):
        raise ApiError(f"A content part of type '{kind}' needs '{TEXT_KEYS[kind]}' as a string.")
    return TextPart(text, _extra(part))


def _extra(part: Mapping[str, Any]) -> Extra:
    return {key: value for key, value in part.items() if key not in _KNOWN_KEYS}


def _medium(
    part: Mapping[str, Any],
    modality: str,
    form: str,
    param: str,
    source: Any,
    uuid: str | None = None,
) -> MediumPart:
    return MediumPart((MediaPart(modality, form, param, source, uuid),), _extra(part))


def _url_object(kind: str, part: Mapping[str, Any]) -> str:
    value = part.get(kind)
    url = value.get("url") if isinstance(value, Mapping) else None
    if not isinstance(url, str):
        raise ApiError(
            f"A content part of type '{kind}' needs '{kind}' as an object with a string 'url'."
        )
    detail = value.get("detail", "auto") if isinstance(value, Mapping) else "auto"
    if kind == "image_url" and detail not in _DETAILS:
        raise ApiError("'detail' of an image must be 'auto', 'low' or 'high'.")
    return url


def _input_image_url(part: Mapping[str, Any]) -> str | None:
    if part.get("detail") not in _DETAILS:
        raise ApiError(
            "A content part of type 'input_image' needs 'detail': 'auto', 'low' or 'high'."
        )
    return _optional_text("image_url", part.get("image_url"))


def _optional_text(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ApiError(f"'{key}' must be a string.")
    return value


def _embeds(key: str, part: Mapping[str, Any], uuid: str | None) -> MediumPart:
    media = [MediaPart(_EMBEDS[key], "embeds", key, part.get(key), uuid)]
    if key == "video_embeds" and part.get("audio_embeds") is not None:
        media.append(MediaPart("audio", "embeds", "audio_embeds", part["audio_embeds"], uuid))
    return MediumPart(tuple(media), _extra(part))


def _input_audio(key: str, part: Mapping[str, Any], uuid: str | None) -> MediumPart:
    audio = part.get(key)
    if audio is not None and not isinstance(audio, Mapping):
        raise ApiError("'input_audio' must be an object with 'data' and 'format'.")
    data = (audio or {}).get("data")
    source = f"data:audio/{(audio or {}).get('format', '')};base64,{data}" if data else None
    return _medium(part, "audio", "data", key, source, uuid)


def _reference(key: str, part: Mapping[str, Any], uuid: str | None) -> ReferencePart:
    return ReferencePart(_optional_text("name", part.get("name")))


def _prompt_embeds(key: str, part: Mapping[str, Any], uuid: str | None) -> Part:
    if part.get("data"):
        reason = "You must set `--enable-prompt-embeds` to input `prompt_embeds`"
    else:
        reason = (
            "prompt_embeds content part requires a non-empty `data` field with base64-encoded"
            " tensor bytes."
        )
    raise bad_request(reason, "prompt_embeds")


def _picture_object(key: str, part: Mapping[str, Any], uuid: str | None) -> Part:
    if part.get(key) is not None:
        raise ApiError("'image_pil' cannot be sent over the wire; use 'image_url'.")
    return _medium(part, "image", "url", key, None, uuid)


_READERS: dict[str, Callable[[str, Mapping[str, Any], str | None], Part]] = {
    "image_embeds": _embeds,
    "audio_embeds": _embeds,
    "video_embeds": _embeds,
    "prompt_embeds": _prompt_embeds,
    "image_pil": _picture_object,
    "input_audio": _input_audio,
    REFERENCE: _reference,
}


def _unknown_type(kind: str) -> ApiError:
    supported = ", ".join(sorted(_TYPES))
    return bad_request(
        f"Unsupported chat content part type: {kind!r}. Supported types: {supported}.",
        "type",
        kind,
    )
