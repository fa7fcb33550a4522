"""Decoded pictures become the arrays a vision tower takes, equal to vLLM's bit for bit.

Every call is one pass in torch that releases the interpreter lock. Knows no request and no family.
"""

import math
import platform
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from schemas.refusals import bad_request
from workers.models.families import options as opt
from workers.models.picture_memory import memory_of

# `resample` of a processor's options, as Pillow numbers it or as torchvision calls it.
_NUMBERED = {0: "nearest-exact", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_MODES = _NUMBERED | {name: name for name in (*_NUMBERED.values(), "nearest")}
_ANTIALIASED = frozenset({"bilinear", "bicubic", "lanczos"})

# We only read the bytes Pillow hands out.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def use_one_thread() -> None:
    """For every worker thread: parallelism comes from many items, not from within one."""
    torch.set_num_threads(1)


def warm() -> None:
    resize(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), 4, 4)


def of_image(image: Image.Image) -> torch.Tensor:
    """[1, 3, height, width] uint8, channels last in memory: the faster form for resizing."""
    if image.mode == "RGBX":
        padded = view_of_bytes(memory_of(image)).view(1, image.height, image.width, 4)
        return padded[..., :3].contiguous().permute(0, 3, 1, 2)
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return view_of_bytes(rgb.tobytes()).view(1, rgb.height, rgb.width, 3).permute(0, 3, 1, 2)


def of_planes(image: Image.Image) -> torch.Tensor:
    """The same, channel by channel in memory: the faster form for cutting into patches."""
    rgb = image if image.mode in ("RGB", "RGBX") else image.convert("RGB")
    channels = [view_of_bytes(memory_of(channel)) for channel in rgb.split()]
    return torch.cat(channels[:3]).view(1, 3, rgb.height, rgb.width)


def resized_planes(
    image: Image.Image, height: int, width: int, resample: int | str = 3
) -> torch.Tensor:
    """As `of_planes`, in another size: [1, 3, height, width] uint8.

    Pillow keeps a fourth, unused byte of each pixel; taking it along spares two copies, and Pillow
    takes pixels apart faster than torch.
    """
    rgb = image if image.mode in ("RGB", "RGBX") else image.convert("RGB")
    padded = view_of_bytes(memory_of(rgb)).view(1, rgb.height, rgb.width, -1).permute(0, 3, 1, 2)
    resized = resize(padded, height, width, resample).permute(0, 2, 3, 1).contiguous()
    mode = "RGBX" if resized.shape[-1] == 4 else "RGB"
    memory = resized.view(-1).numpy()
    return of_planes(Image.frombuffer(mode, (width, height), memory, "raw", mode, 0, 1))


def of_frames(frames: np.ndarray) -> torch.Tensor:
    """[n, 3, height, width] uint8 of [n, height, width, 3]."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2)


def resize(pixels: torch.Tensor, height: int, width: int, resample: int | str = 3) -> torch.Tensor:
    """To the size exactly; pixels that have it already are returned as they are."""
    if tuple(pixels.shape[-2:]) == (height, width):
        return pixels
    mode = _MODES.get(resample) if isinstance(resample, int | str) else None
    if mode is None:
        raise bad_request(f"resample {resample!r} is not supported; use one of {list(_MODES)}")
    smooth = mode in _ANTIALIASED
    if mode == "bilinear" and not _has_integer_bilinear():
        pixels, whole = pixels.float(), True
    else:
        whole = False
    resized = interpolate(
        pixels,
        (height, width),
        mode=mode,
        align_corners=False if smooth else None,
        antialias=smooth,
    )
    return resized.round_().to(torch.uint8) if whole else resized


def stack(pictures: Sequence[torch.Tensor]) -> torch.Tensor:
    """[n, 3, height, width] of pictures of one size."""
    return torch.cat(list(pictures))


def _has_integer_bilinear() -> bool:
    """Elsewhere vLLM's processor goes by way of floating point, with other roundings."""
    capable = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return capable or platform.machine() in ("aarch64", "arm64")


def center_crop(pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The middle; black around where the picture is smaller."""
    have_h, have_w = pixels.shape[-2:]
    missing_h, missing_w = max(height - have_h, 0), max(width - have_w, 0)
    if missing_h or missing_w:
        left, top = missing_w // 2, missing_h // 2
        padding = (left, missing_w - left, top, missing_h - top)
        pixels = torch.nn.functional.pad(pixels, padding)
        have_h, have_w = pixels.shape[-2:]
    top, left = (have_h - height) // 2, (have_w - width) // 2
    return pixels[..., top : top + height, left : left + width]


def rescale_and_normalize(pixels: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    """As the processor's do_rescale and do_normalize say; untouched where both are off.

    float32 rounded the way vLLM's processor rounds: the factor goes into mean and deviation first.
    """
    normalizes = opt.flag(options["do_normalize"], "do_normalize")
    rescales = opt.flag(options["do_rescale"], "do_rescale")
    if not normalizes and not rescales:
        return pixels
    factor = opt.number(options["rescale_factor"], "rescale_factor")
    if not normalizes:
        return pixels * factor
    mean = torch.tensor(opt.colours(options["image_mean"], "image_mean"))
    std = torch.tensor(opt.colours(options["image_std"], "image_std"))
    if rescales:
        mean, std = mean * (1.0 / factor), std * (1.0 / factor)
    values = pixels.to(torch.float32, copy=True)
    return values.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))


def view_of_bytes(data: Any) -> torch.Tensor:
    """uint8 without a copy."""
    return torch.frombuffer(data, dtype=torch.uint8)


def patchify(
    frames: torch.Tensor, *, patch: int, merge: int, temporal: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[n, 3, height, width] to [rows, 3 * temporal * patch²]; missing frames repeat the last one.

    Rows are ordered by blocks of merge x merge patches, because those become one embedding.
    `out` is flat memory to write to, a tensor of its own.
    """
    count, channels, height, width = frames.shape
    groups = -(-count // temporal)
    rows, columns = height // (patch * merge), width // (patch * merge)
    shape = (groups, rows, columns, merge, merge, channels, temporal, patch, patch)
    out = torch.empty(math.prod(shape), dtype=frames.dtype) if out is None else out
    unit, run = _copied_in(frames.dtype, patch)
    cells = out.view(unit).view(*shape[:-1], run)
    source = frames.contiguous().view(unit)
    source = source.view(count, channels, rows, merge, patch, columns, merge, run)
    ordered = source.permute(0, 2, 5, 3, 6, 1, 4, 7)
    for step in range(temporal):
        present = ordered[step::temporal]
        cells[: len(present), ..., step, :, :].copy_(present)
        if len(present) < groups:  # only the last group can lack frames
            cells[-1, ..., step, :, :].copy_(cells[-1, ..., step - 1, :, :])
    return out.view(groups * rows * columns * merge * merge, -1)


def _copied_in(dtype: torch.dtype, patch: int) -> tuple[torch.dtype, int]:
    """The widest type that a patch's row is a number of, and that number: fewer, larger moves."""
    size = dtype.itemsize * patch
    wide = (torch.complex128, torch.int64, torch.int32, torch.int16, torch.uint8)
    unit = next(kind for kind in wide if size % kind.itemsize == 0)
    return unit, size // unit.itemsize


def to_bytes(tensor: torch.Tensor) -> memoryview:
    """C-order bytes without a copy where the tensor is contiguous."""
    flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def cast_floats(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Floats to a dtype by its torch name without prefix; whole numbers stay."""
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
