"""Identities of media items against the published test vectors (02 §2.3) and their own rules."""

import uuid
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from workers.models.hashing import ImageFile, VideoFile, digest, hash_factors, item_id

ABC = ImageFile(b"abc")
CONVERTED = ImageFile(b"abc", {"image_mode": "RGB", "rgba_background_color": (255, 255, 255)})

VECTORS: list[tuple[str, dict[str, Any]]] = [
    (
        "8a84889a5cd634662d1f5353a2376e79ef21e80b6c96c644ffa9fce40d3e81bf",
        {"model_id": "m", "image": ABC},
    ),
    (
        "1addcdeae2cdaaba915bbd1e91ba14bafb79da2adbc57ab6e0742e4a54f5861f",
        {"model_id": "m", "image": CONVERTED},
    ),
    (
        "f4206c3123aec6084f11f0a3a181f64daa3c12bba57d61e65e3283c597b79e31",
        {"model_id": "m", "image": Image.new("RGB", (2, 2), (1, 2, 3))},
    ),
    (
        "3e1e718af232452622ed70d0921b69a88ac7f8e35cb618e3e7406046bc158e4d",
        {"model_id": "m", "audio": np.arange(4, dtype=np.float32)},
    ),
    (
        "ef71a885367e7f61c0422d8954c0d641bbbeffc6020c062d4add9238d3b02cdb",
        {"model_id": "m", "image": torch.arange(6, dtype=torch.float32).reshape(2, 3)},
    ),
    (
        "a5203b0ccdffb254599f81adb0df6225e94f037c1604a6ed110a9b6246d41325",
        {"model_id": "m", "image": torch.ones(2, dtype=torch.bfloat16)},
    ),
    (
        "580c5a964d2d55d15ff143b1b4a61abdd94b1a6ba0405db8a7cd952fdc186c75",
        {"a": 1, "b": 1.5, "c": True, "d": None, "e": [1, "x"], "f": {"k": b"z"}},
    ),
]


@pytest.mark.parametrize(("expected", "values"), VECTORS)
def test_published_vectors_are_reproduced(expected: str, values: dict[str, Any]) -> None:
    assert digest(values) == expected


def test_sha256_and_sha512_frame_alike() -> None:
    values = {"model_id": "m", "image": ABC}

    assert digest(values, "sha256") == (
        "d17b6f1beca6b6f02b366cf19388eac5106d097c096720b02f2f4d8b2aec46d3"
    )
    assert digest(values, "sha512").startswith("055c5a2134c59b551c6cd728d7d90be7")


def test_whole_numbers_are_as_long_as_they_need_to_be() -> None:
    numbers = [-1, 0, 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 2**70]

    assert len({digest({"x": number}) for number in numbers}) == len(numbers)


def test_processor_options_of_the_request_enter_the_identity() -> None:
    options = {"size": {"longest_edge": 100}, "flag": True}

    assert item_id("image", ABC, model="m", processor_kwargs=options) == (
        "803869adf5ff526ed06fdb4b7045ceaa0321e1fdd0ffc21f1c5f897e4d264dfe"
    )


def test_a_uuid_is_the_identity_unless_options_change_the_pixels() -> None:
    assert item_id("image", ABC, model="m", uuid="u1") == "u1"
    assert item_id("image", ABC, model="m", uuid="u1", processor_kwargs={"fps": 2.0}) == (
        "e54b86339795de0838d8e12c42d6eef7812d2eadb69708fd6c1a352585f0949c"
    )


def test_options_of_another_modality_do_not_count() -> None:
    assert hash_factors("image", {"videos_kwargs": {"fps": 1}}, {}) == {}
    assert hash_factors("video", {"videos_kwargs": {"fps": 1}}, {}) == {
        "mm_processor_kwargs": {"videos_kwargs": {"fps": 1}}
    }


def test_loading_options_count_under_their_modality() -> None:
    assert hash_factors("image", {}, {"image_mode": "L"}) == {
        "media_io_kwargs": {"image": {"image_mode": "L"}}
    }


def test_the_smaller_of_file_and_frames_is_hashed() -> None:
    small, large = np.zeros((1, 1, 1, 3), np.uint8), np.zeros((9, 9, 9, 3), np.uint8)

    by_frames = digest({"video": VideoFile(b"file", small)})
    assert by_frames == digest({"video": VideoFile(b"other file", small)})
    by_file = digest({"video": VideoFile(b"file", large)})
    assert by_file == digest({"video": VideoFile(b"file", None)})
    assert by_file != by_frames


def test_a_picture_that_carries_a_uuid_in_its_exif_is_known_by_it() -> None:
    image = Image.new("RGB", (2, 2))
    identity = uuid.UUID(int=7)
    image.getexif()[0x800D] = identity
    other = Image.new("RGB", (5, 5), (9, 9, 9))
    other.getexif()[0x800D] = identity

    assert digest({"image": image}) == digest({"image": other})


def test_a_palette_picture_is_known_by_its_palette_too() -> None:
    red, blue = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])

    assert digest({"image": red}) != digest({"image": blue})


def test_a_strided_array_hashes_as_its_copy_does() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)

    assert digest({"a": array[:, ::2]}) == digest({"a": array[:, ::2].copy()})
    assert digest({"a": np.float32(1.5)}) != digest({"a": np.array([1.5], np.float32)})


def test_what_has_no_stable_form_is_refused() -> None:
    with pytest.raises(TypeError, match="no stable hash"):
        digest({"a": object()})


_LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary()
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), _VALUES, max_size=4), st.dictionaries(st.text(), _VALUES, max_size=4)
)
@settings(deadline=None)
def test_different_values_have_different_digests(a: dict[str, Any], b: dict[str, Any]) -> None:
    same = _tagged(a) == _tagged(b)

    assert (digest(a) == digest(b)) is same


def _tagged(value: Any) -> Any:
    """With types, because True == 1 in Python; order counts inside but not at the top."""
    if isinstance(value, dict):
        return {key: _inner(inner) for key, inner in value.items()}
    return _inner(value)


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return ["map", *((key, _inner(inner)) for key, inner in value.items())]
    if isinstance(value, list):
        return ["list", *map(_inner, value)]
    return (type(value).__name__, value)
