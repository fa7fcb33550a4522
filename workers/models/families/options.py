"""Merges processor options of model, operator and request the way vLLM does. Knows no family."""

from collections.abc import Collection, Mapping
from typing import Any

from schemas.refusals import bad_request

SCOPES = {"image": "images_kwargs", "video": "videos_kwargs"}
RAW_PIXELS = {"do_normalize": False, "do_rescale": False}


def resolve(
    modality: str,
    known: Collection[str],
    *,
    server: Mapping[str, Any],
    request: Mapping[str, Any],
    raw_pixels: bool,
) -> dict[str, Any]:
    """Options of one modality: the request's win over the operator's, scoped ones over flat ones.

    `raw_pixels`: the encoder normalises, so flat wishes for it are ignored. Unknown keys are, too.
    """
    merged = merge(server, request)
    if raw_pixels:
        merged |= RAW_PIXELS
    scoped = merged.get(SCOPES[modality]) or {}
    if not isinstance(scoped, Mapping):
        raise bad_request(f"`{SCOPES[modality]}` must be a mapping")
    flat = {key: value for key, value in merged.items() if key in known}
    return merge(flat, {key: value for key, value in scoped.items() if key in known})


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings inside are merged too, everything else is replaced."""
    merged = dict(low)
    for key, value in high.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad_request(f"{name} must be an object, got {value!r}")
    return value


def sides(value: Any, name: str) -> tuple[int, int]:
    """(height, width) of an option that must have both."""
    given = mapping(value, name)
    return integer(given.get("height"), f"{name}.height"), integer(
        given.get("width"), f"{name}.width"
    )


def integer(value: Any, name: str, *, least: int = 1) -> int:
    """Raise ApiError for what is no whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise bad_request(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def number(value: Any, name: str) -> float:
    """Raise ApiError for what is no positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise bad_request(f"{name} must be a positive number, got {value!r}")
    return float(value)


def real(value: Any, name: str) -> float:
    """Raise ApiError for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise bad_request(f"{name} must be a number, got {value!r}")
    return value


def flag(value: Any, name: str) -> bool:
    """Null is no. Raise ApiError for what is neither."""
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false, got {value!r}")
    return bool(value)


def colours(value: Any, name: str) -> tuple[float, ...]:
    """One number per channel; a single number counts for all three."""
    values = value if isinstance(value, list | tuple) else [value] * 3
    if len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise bad_request(f"{name} must be 3 numbers, got {value!r}")
    return tuple(float(v) for v in values)
