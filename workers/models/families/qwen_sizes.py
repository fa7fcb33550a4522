"""Sizes, options and samples as the Qwen-VL processors work them out. Data in, data out."""

import math
from collections.abc import Mapping
from typing import Any

from schemas.refusals import bad_request
from workers.models.families import options as opt

MAX_RATIO = 200
MAX_AREA = 2**28
"""Pixels to which options may enlarge."""
_PIXEL_ALIASES = (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))


def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width): multiples of the factor, the area within bounds, the ratio nearly kept."""
    check_ratio(height, width)
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    if high * wide > max_pixels:
        scale = math.sqrt((height * width) / max_pixels)
        high = max(factor, math.floor(height / scale / factor) * factor)
        wide = max(factor, math.floor(width / scale / factor) * factor)
    elif high * wide < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        high = math.ceil(height * scale / factor) * factor
        wide = math.ceil(width * scale / factor) * factor
        check_area(high * wide)
    return high, wide


def check_area(pixels: int) -> None:
    """Neither a prompt nor a tensor holds what is enlarged without end."""
    if pixels > MAX_AREA:
        raise bad_request(f"at least {pixels} pixels are asked for, {MAX_AREA} are possible")


def check_ratio(height: int, width: int) -> None:
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_RATIO:
        raise bad_request(
            f"the aspect ratio of {width}x{height} must be smaller than {MAX_RATIO}, got {ratio:g}"
        )


def float32_steps(total: int, count: int) -> list[int]:
    """Indices by accumulating in float32, where rounding may reach past the last frame."""
    import torch

    indices = torch.arange(0, total, total / count).int()
    values: list[int] = indices.clamp(max=total - 1).tolist()
    return values


def with_size(defaults: Mapping[str, Any], configured: Mapping[str, Any]) -> dict[str, Any]:
    """The processor's own settings; old files give the size as min_pixels and max_pixels."""
    own = {k: v for k, v in configured.items() if k in defaults and v is not None}
    size = dict(own.get("size") or defaults["size"])
    for edge, alias in _PIXEL_ALIASES:
        value = configured.get(alias) or size.get(alias)
        if value is not None:
            size[edge] = value
        size.pop(alias, None)
    return {**defaults, **own, "size": size}


def is_resampled(options: Mapping[str, Any], otherwise: Any = False) -> bool:
    """Whether the processor samples frames. Its options are checked even where it does not."""
    if options["fps"] is not None:
        opt.real(options["fps"], "fps")
    if options["num_frames"] is not None:
        opt.integer(options["num_frames"], "num_frames")
    return opt.flag(options.get("do_sample_frames", otherwise), "do_sample_frames")


def with_aliases(request: Mapping[str, Any]) -> dict[str, Any]:
    """min_pixels and size.shortest_edge mean the same, as do their opposites: complete each by the
    other, so that a request wins over the operator's flag in either spelling."""
    completed = _completed(request)
    for scope in opt.SCOPES.values():
        if isinstance(completed.get(scope), Mapping):
            completed[scope] = _completed(completed[scope])
    return completed


def _completed(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(kwargs)
    size = dict(opt.mapping(out.get("size") or {}, "size"))
    for edge, alias in _PIXEL_ALIASES:
        if alias not in out:
            if size.get(edge) is not None:
                out[alias] = size[edge]
        elif out[alias] is not None and edge not in size:
            size[edge] = out[alias]
            out["size"] = size
    return out


def vision_size(default: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, int]:
    """Pixel counts win over the edges that mean the same."""
    size = {**default, **opt.mapping(chosen.get("size") or {}, "size")}
    if set(size) != {"shortest_edge", "longest_edge"}:
        raise bad_request(f"size takes shortest_edge and longest_edge, got {dict(size)}")
    for edge, alias in _PIXEL_ALIASES:
        if chosen.get(alias) is not None:
            size[edge] = chosen[alias]
    shortest = opt.integer(size["shortest_edge"], "size.shortest_edge", least=-(2**31))
    longest = opt.integer(size["longest_edge"], "size.longest_edge")
    if shortest == 0:
        raise bad_request("size.shortest_edge must not be 0")
    return {"shortest_edge": shortest, "longest_edge": longest}
