"""A computation whose numbers stop being numbers ends, and says whose fault that is."""

import asyncio
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.storage import Embedding
from schemas.envelope import Caller
from schemas.errors import ApiError
from schemas.mm_item import Field, Tensor
from tests.engine.builders import image_body, soon, text_body, without_payload
from workers.models.engine.language import LanguageModel
from workers.models.engine.numbers import is_finite
from workers.models.engine.protocol import EncoderInput

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.floats(-100, 100), min_size=1, max_size=8),
    st.none() | st.sampled_from([float("nan"), float("inf"), -float("inf")]),
)
def test_one_number_that_is_none_is_found(dtype, values, odd):
    values = torch.tensor(values if odd is None else [*values, odd], dtype=DTYPES[dtype])
    data = values.view(torch.uint8).numpy().tobytes()

    assert is_finite(Embedding(dtype, (1, len(values)), data)) is (odd is None)


@pytest.fixture
def spoilt(fleet, monkeypatch):
    """The model, whose output can be spoilt from a token on."""
    from_token = [10**6]
    decode = LanguageModel.decode

    def spoiling(self, tokens, position, cache):
        logits = decode(self, tokens, position, cache).clone()
        if len(tokens) > 1 and position >= from_token[0]:
            logits[1, 5] = float("nan")
        return logits

    monkeypatch.setattr(LanguageModel, "decode", spoiling)
    return from_token


async def test_a_generation_that_loses_its_numbers_ends_and_its_neighbour_goes_on(fleet, spoilt):
    alone = await fleet.ask(text_body(max_tokens=20), "prefill")
    body = text_body(max_tokens=20, n=2, temperature=1, seed=3)
    spoilt[0] = len(body["token_ids"]) + 3

    ended, beside = await asyncio.gather(
        fleet.ask(body, "prefill", id="r1"), fleet.ask(text_body(max_tokens=20), "prefill", id="r2")
    )

    assert ended[0] == 500
    assert "not finite" in ended[1]["error"]["message"]
    assert beside[1]["choices"] == alone[1]["choices"]


async def test_what_a_prompt_makes_is_looked_at_too(fleet, monkeypatch):
    monkeypatch.setattr(
        LanguageModel, "prefill", lambda self, *_, keep: torch.full((keep, 2048), float("nan"))
    )

    text, picture = (
        await fleet.ask(text_body(), "prefill"),
        await fleet.ask(image_body(), "prefill"),
    )

    assert text[0] == 500
    # Its tensors came with the request.
    assert (picture[0], picture[1]["error"]["param"]) == (400, "kwargs_data")


async def test_parameters_that_leave_no_token_end_the_request(fleet):
    nothing = {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2}

    status, answer = await fleet.ask(text_body(**nothing), "prefill")

    assert status == 400
    assert "leave no token" in answer["error"]["message"]


def embeds(value, dtype="<f4", width=192):
    data = np.full((6, width), value, dtype)
    grid = Tensor("int64", (3,), struct.pack("<3q", 1, 4, 6))
    return {
        "image_embeds": Field(Tensor(str(data.dtype), data.shape, data.tobytes()), "batched"),
        "image_grid_thw": Field(grid, "batched", {"keep_on_cpu": True}),
    }


@pytest.mark.parametrize(
    "fields",
    [embeds(float("nan")), embeds(float("inf")), embeds(1e300, "<f8"), embeds(1, "<i8"),
     embeds(1, "?"), embeds(1, "<c8"), embeds(1, width=7)],
)  # fmt: skip
async def test_finished_embeddings_that_are_no_numbers_are_refused(fleet, fields):
    wanted = EncoderInput("image", "abc", fields, by_caller=True)

    with pytest.raises(ApiError) as caught:
        await fleet.engines.encoder.encode([wanted], deadline_ms=soon())

    assert caught.value.status == 400


async def test_pixels_that_are_numbers_but_no_picture_are_the_callers_fault(fleet):
    """Finite going in, not finite coming out."""
    pixels = np.full((24, 1536), 3e38, "<f4")
    fields = embeds(0)
    del fields["image_embeds"]
    fields["pixel_values"] = Field(Tensor("float32", pixels.shape, pixels.tobytes()), "batched")

    for by_caller, status in ((True, 400), (False, 500)):
        wanted = EncoderInput("image", "abc", fields, by_caller=by_caller)
        with pytest.raises(ApiError, match="not finite") as caught:
            await fleet.engines.encoder.encode([wanted], deadline_ms=soon())
        assert caught.value.status == status


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"salt": "s"}])
async def test_another_owner_finds_nothing_by_a_hash(fleet, other):
    body = image_body()
    await fleet.ask(body, "encode", caller=Caller(tenant="a"))
    named = {**without_payload(body), "ec_transfer_params": {"x": {}}}

    same = await fleet.admit(named, "prefill", caller=Caller(tenant="a"))
    await fleet.prefill.process(same)
    for tenant, salt in ((other.get("tenant", "a"), other.get("salt")), ("", None)):
        foreign = {**named, **({"cache_salt": salt} if salt else {})}
        job = await fleet.admit(foreign, "prefill", caller=Caller(tenant=tenant))
        with pytest.raises(Exception, match="no embedding"):
            await fleet.prefill.process(job)
