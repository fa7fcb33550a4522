"""Arithmetic on pixels against plain restatements of it."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ApiError
from tests.models_media.pictures import noise
from workers.models import pixels
from workers.models.picture_memory import memory_of


@settings(deadline=None)
@given(
    count=st.integers(1, 5), rows=st.integers(1, 3), columns=st.integers(1, 3),
    patch=st.integers(1, 4), merge=st.integers(1, 2), temporal=st.integers(1, 3),
)  # fmt: skip
def test_patches_are_where_a_slow_loop_puts_them(
    count: int, rows: int, columns: int, patch: int, merge: int, temporal: int
) -> None:
    height, width = rows * merge * patch, columns * merge * patch
    frames = torch.arange(count * 3 * height * width, dtype=torch.int32)
    frames = frames.view(count, 3, height, width)

    got = pixels.patchify(frames, patch=patch, merge=merge, temporal=temporal)

    assert torch.equal(got, _slowly(frames, patch, merge, temporal))


def _slowly(frames: torch.Tensor, patch: int, merge: int, temporal: int) -> torch.Tensor:
    count, _, height, width = frames.shape
    out = []
    for group in range(-(-count // temporal)):
        steps = [min(group * temporal + t, count - 1) for t in range(temporal)]
        for top in range(0, height, merge * patch):
            for left in range(0, width, merge * patch):
                for y in range(top, top + merge * patch, patch):
                    for x in range(left, left + merge * patch, patch):
                        block = frames[steps, :, y : y + patch, x : x + patch]
                        out.append(block.transpose(0, 1).flatten())
    return torch.stack(out)


def test_a_picture_is_read_as_it_is() -> None:
    image = noise(7, 5)

    tensor = pixels.of_image(image)

    assert tensor.shape == (1, 3, 5, 7)
    assert (tensor[0].permute(1, 2, 0).numpy() == np.asarray(image)).all()
    assert torch.equal(pixels.of_planes(image), tensor)


def test_pixels_of_the_right_size_are_not_touched() -> None:
    tensor = pixels.of_image(noise(8, 8))

    assert pixels.resize(tensor, 8, 8) is tensor


def test_resizing_does_not_depend_on_how_pixels_lie_in_memory() -> None:
    tensor = pixels.of_image(noise(50, 40))

    a = pixels.resize(tensor, 32, 64)
    b = pixels.resize(tensor.contiguous(), 32, 64)
    assert torch.equal(a, b)


@pytest.mark.parametrize("size", [(50, 40), (64, 32), (2100, 2050)])
@pytest.mark.parametrize("resample", [2, 3])
def test_resizing_by_planes_gives_the_same_pixels(size: tuple[int, int], resample: int) -> None:
    image = noise(*size)  # the largest is kept in several pieces by Pillow

    planes = pixels.resized_planes(image, 32, 64, resample)

    assert torch.equal(planes, pixels.resize(pixels.of_image(image), 32, 64, resample))
    assert planes.is_contiguous()


def test_pixels_outlive_the_picture_that_they_were_read_from() -> None:
    image = noise(64, 64)
    expected = image.getchannel(1).tobytes()

    memory = memory_of(image.getchannel(1))
    del image
    gc.collect()

    assert bytes(memory) == expected


@pytest.mark.parametrize("unknown", [5, "box", "", None, [3]])
def test_an_unknown_way_of_resizing_is_refused(unknown: Any) -> None:
    with pytest.raises(ApiError, match="resample"):
        pixels.resize(pixels.of_image(noise()), 10, 10, unknown)


@pytest.mark.parametrize(
    ("name", "number"), [("nearest-exact", 0), ("lanczos", 1), ("bilinear", 2), ("bicubic", 3)]
)
def test_ways_of_resizing_have_names_and_numbers(name: str, number: int) -> None:
    tensor = pixels.of_image(noise(50, 40))

    assert torch.equal(pixels.resize(tensor, 32, 64, name), pixels.resize(tensor, 32, 64, number))


@pytest.mark.parametrize(("height", "width"), [(3, 3), (9, 9), (4, 11), (5, 7)])
def test_a_crop_is_the_middle_and_black_outside(height: int, width: int) -> None:
    tensor = torch.full((1, 3, 5, 7), 9, dtype=torch.uint8)

    crop = pixels.center_crop(tensor, height, width)

    assert crop.shape == (1, 3, height, width)
    assert int((crop == 9).sum()) == 3 * min(height, 5) * min(width, 7)


def test_normalising_is_what_the_formula_says() -> None:
    tensor = pixels.of_image(noise(8, 8))
    options = {
        "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.4, 0.3], "image_std": 0.5,
    }  # fmt: skip

    got = pixels.rescale_and_normalize(tensor, options)

    mean = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
    assert torch.allclose(got, (tensor / 255 - mean) / 0.5, atol=1e-6)
    assert got.dtype is torch.float32


def test_raw_pixels_stay_whole_numbers() -> None:
    tensor = pixels.of_image(noise(8, 8))
    options = {"do_rescale": False, "do_normalize": False, "rescale_factor": 1 / 255}

    assert pixels.cast_floats(pixels.rescale_and_normalize(tensor, options), "bfloat16") is tensor


def test_bytes_are_a_view_of_the_tensor() -> None:
    tensor = torch.arange(6, dtype=torch.int16).view(2, 3)

    view = pixels.to_bytes(tensor)
    tensor[0, 0] = 7

    assert bytes(view[:2]) == b"\x07\x00"
    assert bytes(pixels.to_bytes(torch.tensor(1.5, dtype=torch.bfloat16))) == b"\xc0\x3f"
    assert bytes(pixels.to_bytes(torch.empty(0))) == b""
