"""Turns pictures into patches exactly as the served preprocessor does."""

import math

import numpy as np
import torch
from PIL import Image

PATCH, MERGE = 16, 2  # pixels per patch edge, patches per token edge
FACTOR = PATCH * MERGE
# Areas in pixels. 128 x 128 gives 16 tokens; small pictures are enlarged to about that.
SHORTEST_EDGE, LONGEST_EDGE = 12288, 16384


def smart_resize(height: int, width: int) -> tuple[int, int]:
    """(height, width) in pixels after resizing: multiples of FACTOR, the area near the limits."""
    high, wide = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if high * wide > LONGEST_EDGE:
        shrink = math.sqrt(height * width / LONGEST_EDGE)
        high = max(FACTOR, math.floor(height / shrink / FACTOR) * FACTOR)
        wide = max(FACTOR, math.floor(width / shrink / FACTOR) * FACTOR)
    elif high * wide < SHORTEST_EDGE:
        grow = math.sqrt(SHORTEST_EDGE / (height * width))
        high = math.ceil(height * grow / FACTOR) * FACTOR
        wide = math.ceil(width * grow / FACTOR) * FACTOR
    return high, wide


def patchify(image: Image.Image) -> tuple[torch.Tensor, tuple[int, int]]:
    """uint8 patches [rows * columns, 768] in merge-block order, and the grid (rows, columns).

    The served layout repeats each patch for two frames; the training forward adds the two halves of
    the patch kernel instead, so the repetition is left out here (see `with_frames`).
    """
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None]
    high, wide = smart_resize(image.height, image.width)
    if (high, wide) != (image.height, image.width):
        pixels = torch.nn.functional.interpolate(
            pixels.contiguous(),
            size=(high, wide),
            mode="bicubic",
            antialias=True,
            align_corners=False,
        )
    rows, columns = high // PATCH, wide // PATCH
    blocks = pixels.reshape(3, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    patches = blocks.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, 3 * PATCH * PATCH)
    return patches.contiguous(), (rows, columns)


def with_frames(patches: torch.Tensor) -> torch.Tensor:
    """uint8 [P, 768] to the float [P, 1536] the model takes: two equal frames, mean and std 0.5."""
    frames = patches.reshape(-1, 3, 1, PATCH * PATCH).expand(-1, -1, 2, -1)
    return normalised(frames.reshape(len(patches), -1))


def normalised(patches: torch.Tensor) -> torch.Tensor:
    """uint8 0..255 to float -1..1."""
    return patches.float().div_(127.5).sub_(1.0)
