from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError
from schemas.parts import MEDIA_KEYS, REFERENCE, TEXT_KEYS, has_media, is_medium
from workers.render.parts import MediumPart, read_part

PICTURE = {"image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("text", False),
        ({"text": "hi"}, False),
        ({"type": None, "text": "hi"}, False),
        ({"type": "tool_reference", "name": "f"}, False),
        ({"tool_reference": "f"}, False),
        ({"type": "text", "text": "hi", "image_url": "x"}, False),
        ({"type": "text", "text": "hi", "uuid": "u", "image_url": "x"}, True),
        (PICTURE, True),
        ({"type": "image_url", **PICTURE}, True),
        ({"type": "input_image", "image_url": "x"}, True),
        ({"type": "something"}, True),
        ({"type": ["text"]}, True),
        (5, False),
        (None, False),
    ],
)
def test_media_are_told_from_text(part: Any, expected: bool) -> None:
    assert is_medium(part) is expected


keys = st.sampled_from([*MEDIA_KEYS, *TEXT_KEYS, REFERENCE, "name", "uuid"])
kinds = st.sampled_from([*MEDIA_KEYS, *TEXT_KEYS, REFERENCE, "input_image", None])
values = st.sampled_from(["x", None, {"url": "x"}, {"data": "x", "format": "wav"}])


@given(part=st.dictionaries(keys, values), kind=kinds, is_typed=st.booleans())
def test_rendering_makes_media_of_media_only(
    part: dict[str, Any], kind: str | None, is_typed: bool
) -> None:
    part = {**part, "type": kind} if is_typed else part
    try:
        read = read_part(part)
    except ApiError:
        return

    assert isinstance(read, MediumPart) is is_medium(part)


@pytest.mark.parametrize(
    "messages", [None, 5, "x", {}, [5], [{}], [{"content": "x"}], [{"content": {"a": PICTURE}}]]
)
def test_what_is_no_list_of_messages_has_no_media(messages: Any) -> None:
    assert not has_media(messages)


def test_one_part_among_many_is_found() -> None:
    text = {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}

    assert not has_media([text])
    assert has_media([text, {"role": "user", "content": ["a", PICTURE]}])
