"""What the fuzz of launch render takes for a difference, and what it generates."""

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image

from schemas.mm_item import Field, Tensor, encode_item

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))  # scripts, no package

import fuzz_render
from fuzz import excuses
from fuzz.bodies import Request
from fuzz.compare import Answer, difference
from fuzz.pictures import MODES, Recipe


def rendered(**fields: Any) -> Answer:
    return Answer(200, {"request_id": "r", "token_ids": [1, 2]} | fields)


def refused(status: int = 400, **error: Any) -> Answer:
    return Answer(
        status, {"error": {"type": "BadRequestError", "param": None, "code": 400} | error}
    )


def item(data: bytes, slices: Any) -> str:
    kwargs = {"keep_on_cpu": False, "slices": slices, "dim": 0}
    fields = {"pixel_values": Field(Tensor("uint8", (2,), data), "flat", kwargs)}
    return base64.b64encode(encode_item(fields)).decode()


def with_item(blob: str) -> Answer:
    return rendered(features={"kwargs_data": {"image": [blob]}, "mm_metadata": None})


def where(ours: Answer, peer: Answer) -> str | None:
    found = difference(ours, peer)
    return None if found is None else found.where


def test_equal_answers_do_not_differ() -> None:
    assert where(rendered(), rendered()) is None
    assert where(refused(message="one"), refused(message="another")) is None


def test_a_difference_is_told_by_its_place() -> None:
    assert where(rendered(), rendered(token_ids=[1, 3])) == "token_ids[]"
    assert where(rendered(), rendered(stream=False)) == "stream"
    assert where(rendered(priority=0), rendered(priority=False)) == "priority"
    assert where(refused(), refused(param="model")) == "param of error None / model"
    assert where(rendered(), refused()) == "status 200 / 400 BadRequestError"


def test_items_are_compared_by_their_fields_but_not_by_their_slices() -> None:
    one = with_item(item(b"ab", [[0, 2, None]]))

    assert where(one, with_item(item(b"ab", [[2, 4, None]]))) is None
    assert where(one, with_item(item(b"ac", [[0, 2, None]]))) == (
        "features.kwargs_data.image[].pixel_values"
    )


def test_only_generated_ids_may_differ() -> None:
    one, other = (rendered(request_id=f"resp_{digit * 16}") for digit in "12")

    assert where(one, other) is None
    assert where(one, rendered(request_id="resp_mine")) == "request_id"


def test_excuses_are_for_literals_and_for_5xx_that_are_the_callers_fault() -> None:
    plain = Request("/v1/completions/render", {"prompt": "x"})
    literal = Request("/v1/completions/render", {"prompt": "<|image_pad|>"})

    assert excuses.reason(plain, refused(), refused(500)) is not None
    assert excuses.reason(literal, rendered(), rendered(token_ids=[])) is not None
    assert excuses.reason(literal, refused(), rendered()) is None
    assert excuses.reason(plain, rendered(), rendered(token_ids=[])) is None
    assert excuses.reason(plain, refused(500), refused()) is None
    assert excuses.reason(plain, rendered(), refused(500)) is None


def test_a_template_may_refuse_before_anything_is_fetched() -> None:
    chat = {"messages": [], "continue_final_message": True}
    continued = Request("/v1/chat/completions/render", chat)
    plain = Request("/v1/chat/completions/render", {"messages": []})

    assert excuses.reason(continued, refused(), refused(422)) is not None
    assert excuses.reason(plain, refused(), refused(422)) is None


def test_a_broken_picture_may_be_known_by_its_uuid() -> None:
    path, broken = "/v1/chat/completions/render", refused(message="Failed to load image: x")
    named = Request(path, {"messages": [{"role": "user", "content": [{"uuid": "u"}]}]})
    plain = Request(path, {"messages": []})

    assert excuses.reason(named, rendered(), broken) is not None
    assert excuses.reason(plain, rendered(), broken) is None
    assert excuses.reason(named, rendered(), refused()) is None


def test_a_broken_picture_may_pass_where_no_tensors_are_asked_for() -> None:
    path, broken = "/v1/messages/render", refused(message="Failed to load image: x")

    for body in ({"mm_payload": "none"}, {"return_mm_kwargs": False}):
        assert excuses.reason(Request(path, body), rendered(), broken) is not None
    assert excuses.reason(Request(path, {"mm_payload": "tensors"}), rendered(), broken) is None


def test_a_picture_whose_pixels_do_not_fit_its_header_may_be_refused() -> None:
    plain = Request("/v1/chat/completions/render", {"messages": []})
    odd = refused(message="Failed to load image: its pixels do not fit its header")

    assert excuses.reason(plain, odd, rendered()) is not None
    assert excuses.reason(plain, refused(message="Failed to load image: x"), rendered()) is None


@pytest.mark.parametrize("form", MODES)
def test_recipes_make_pictures(form: str) -> None:
    for mode in MODES[form]:
        data = Recipe(form, mode, (5, 7), seed=1).file()

        assert Image.open(io.BytesIO(data)).size == (5, 7)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(fuzz_render.EXAMPLES)
def test_examples_are_json_bodies_for_render_endpoints(requests: list[Request]) -> None:
    assert requests
    for request in requests:
        assert request.path.endswith("/render")
        assert json.loads(json.dumps(request.body)) == request.body
