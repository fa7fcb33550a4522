import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError
from schemas.mm_item import Field, Tensor
from tests.engine.items import field_of
from workers.models.engine.fields import to_tensors
from workers.models.engine.metadata import plain_fields

DTYPES = st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.float32, torch.bfloat16])
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@given(DTYPES, SHAPES)
def test_plain_values_are_those_of_the_tensor(dtype, shape):
    tensor = torch.randint(0, 100, shape).to(dtype)

    found = plain_fields({"x": field_of(tensor)}, ["x", "absent"])

    assert found == {"x": tensor.tolist()}
    assert torch.equal(to_tensors({"x": field_of(tensor)})["x"], tensor)


def test_lists_and_numbers_stay_as_they_are():
    fields = {"timestamps": Field([0.25, 1.5], "batched"), "count": Field(3, "batched")}

    assert plain_fields(fields, fields) == {"timestamps": [0.25, 1.5], "count": 3}
    assert to_tensors(fields)["timestamps"].tolist() == [0.25, 1.5]


def test_large_metadata_is_refused():
    field = Field(Tensor("uint8", (70_000,), bytes(70_000)), "batched")

    with pytest.raises(ApiError, match="70000"):
        plain_fields({"x": field}, ["x"])


def test_a_dtype_without_plain_numbers_is_refused():
    field = Field(Tensor("complex64", (1,), struct.pack("<ff", 1, 2)), "batched")

    with pytest.raises(ApiError, match="complex64"):
        plain_fields({"x": field}, ["x"])
