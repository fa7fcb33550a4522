"""By which names and types Qwen-VL's processors take options, as vLLM has them checked.

They check all that is given before they process anything, also what is meant for a modality that
the request does not have. Which values make sense is up to the families.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from schemas.refusals import bad_request
from workers.models.families.options import SCOPES

_Check: TypeAlias = Callable[[Any], bool]


def _is_anything(_: Any) -> bool:
    return True


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pixels(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_filter(value: Any) -> bool:
    return value is None or _is_count(value) or isinstance(value, str)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_factor(value: Any) -> bool:
    return value is None or isinstance(value, float)


def _is_colour(value: Any) -> bool:
    return all(map(_is_factor, value)) if isinstance(value, list) else _is_factor(value)


def _is_size(value: Any) -> bool:
    if value is None or isinstance(value, Mapping):
        return all(map(_is_count, (value or {}).values()))
    return all(map(_is_count, value)) if isinstance(value, list) else _is_count(value)


def _is_processor(value: Any) -> bool:
    return value in (None, "cpu")


_OF_ALL: Mapping[str, _Check] = {
    **dict.fromkeys(("do_convert_rgb", "do_resize", "do_rescale", "do_normalize"), _is_flag),
    **dict.fromkeys(("do_pad", "do_center_crop", "default_to_square"), _is_flag),
    **dict.fromkeys(("image_mean", "image_std"), _is_colour),
    **dict.fromkeys(("size", "crop_size"), _is_size),
    **dict.fromkeys(("data_format", "input_data_format"), _is_text),
    **dict.fromkeys(("patch_size", "temporal_patch_size", "merge_size"), _is_count),
    **dict.fromkeys(("min_pixels", "max_pixels"), _is_pixels),
    "rescale_factor": _is_factor,
    "truncation": _is_anything,  # taken by the tokenizer, wherever it stands
}
_OF_ONE: Mapping[str, Mapping[str, _Check]] = {
    "image": {
        "device": _is_processor,
        "resample": _is_filter,
        "disable_grouping": _is_flag,
        "pad_size": _is_size,
        "image_seq_length": _is_anything,
    },
    "video": {
        "device": _is_anything,
        "do_sample_frames": _is_flag,
        "return_metadata": _is_flag,
        "cap_pixels_per_frame": _is_flag,
        "min_frames": _is_count,
        "max_frames": _is_count,
        **dict.fromkeys(("fps", "num_frames", "video_metadata", "max_video_tokens"), _is_anything),
        "resample": _is_anything,
    },
}
_TAKEN = ("text", "images", "videos", "return_tensors")
"""What the processor is called with anyway."""


def check_types(request: Mapping[str, Any]) -> None:
    """Raise ApiError for options that are none."""
    for name in _TAKEN:
        if name in request:
            raise bad_request(f"mm_processor_kwargs.{name} is not for requests to say")
    for name, value in request.items():
        if not name.endswith("_kwargs") and _is_deep(value):
            raise bad_request(f"mm_processor_kwargs.{name} has lists or objects inside of others")
    for scope in ("text_kwargs", "audio_kwargs", *SCOPES.values()):
        if not isinstance(request.get(scope) or {}, Mapping):
            raise bad_request(f"`{scope}` must be a mapping")
    for modality, scope in SCOPES.items():
        _check_modality(request, scope, {**_OF_ALL, **_OF_ONE[modality]})


def _is_deep(value: Any) -> bool:
    values = value.values() if isinstance(value, Mapping) else value
    inner = values if isinstance(value, Mapping | list) else ()
    return any(isinstance(each, Mapping | list) for each in inner)


def _check_modality(request: Mapping[str, Any], scope: str, known: Mapping[str, _Check]) -> None:
    """Keys that nobody knows are ignored beside the scopes, but not in them."""
    scoped = request.get(scope) or {}
    for name in scoped.keys() - known.keys():
        raise bad_request(f"mm_processor_kwargs.{scope} takes no {name!r}")
    flat = {name: value for name, value in request.items() if name in known}
    for name, value in {**flat, **scoped}.items():
        if not known[name](value):
            raise bad_request(f"mm_processor_kwargs: {name} cannot be {value!r}")
