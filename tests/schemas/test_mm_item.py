import math
import sys
from collections.abc import Callable
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError, DecodeError
from schemas.mm_item import (
    ITEM_SIZES,
    RAW_VIEW,
    Field,
    FieldShape,
    Tensor,
    decode_item,
    encode_item,
    item_bytes,
    metadata_only,
    peek,
)
from tests.schemas.recorded import CORPUS, corpus_items, items


def packed(data: object, field: object = ("batched", {"keep_on_cpu": True})) -> bytes:
    return msgpack.packb({"f": {"data": data, "field": field}})


def tensor(dtype: str = "uint8", shape: object = (2,), raw: object = b"ab") -> list[object]:
    ext = msgpack.ExtType(RAW_VIEW, raw) if isinstance(raw, bytes) else raw
    return [dtype, shape, ext]


@pytest.mark.parametrize("data", items(), ids=len)
def test_recorded_items_encode_to_the_same_bytes(data: bytes) -> None:
    assert encode_item(decode_item(data)) == data


@pytest.mark.skipif(CORPUS is None, reason="GOLDEN_CORPUS names no folder")
def test_every_item_of_the_corpus_encodes_to_the_same_bytes() -> None:
    count = 0
    for data in corpus_items():
        assert encode_item(decode_item(data)) == data
        count += 1
    assert count > 20


def test_a_recorded_grid_reads_as_the_specification_says() -> None:
    data = next(d for d in items() if b"image_grid_thw" in d and len(d) < 100)
    field = decode_item(data)["image_grid_thw"]
    assert (field.factory, field.kwargs, field.keep_on_cpu) == (
        "batched",
        {"keep_on_cpu": True},
        True,
    )
    assert isinstance(field.data, Tensor)
    assert (field.data.dtype, field.data.shape) == ("int64", (3,))
    assert len(field.data.data) == 24


def test_tensor_bytes_are_views_into_what_was_decoded() -> None:
    data = packed(tensor("uint8", [1000], b"x" * 1000))
    field = decode_item(data)["f"]
    assert isinstance(field.data, Tensor)
    assert isinstance(field.data.data, memoryview)
    assert field.data.data.obj is data


def test_peek_tells_shapes_without_the_bytes() -> None:
    assert peek(packed(tensor("bfloat16", [1, 1], b"ab"))) == {
        "f": FieldShape("bfloat16", (1, 1), 2, True)
    }
    assert peek(packed([0.3, 1.45])) == {"f": FieldShape(None, (), 0, True)}


def test_metadata_is_what_stays_on_the_cpu() -> None:
    fields = {
        "pixel_values": Field(Tensor("uint8", (1,), b"a"), "flat", {"slices": [], "dim": 0}),
        "grid": Field(None, "batched", {"keep_on_cpu": True}),
    }
    assert list(metadata_only(fields)) == ["grid"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x00",
        msgpack.packb([1]),
        packed(1) + b"\x00",
        packed(1)[:-1],
        msgpack.packb({1: {}}),
        msgpack.packb({"f": 1}),
        msgpack.packb({"f": {"data": 1}}),
        msgpack.packb({"f": {"data": 1, "field": ["batched", {}], "more": 1}}),
        packed(1, ["folded", {}]),
        packed(1, ["flat", {"dim": 0}]),
        packed(1, ["shared", {}]),
        packed(1, ["batched"]),
        packed(1, ["batched", {"keep_on_cpu": {}}]),
        packed("text"),
        packed(b"raw"),
        packed({"a": 1}),
        packed(tensor("float7")),
        packed(tensor("object")),
        packed(tensor(shape=[3])),
        packed(tensor(shape=[-2])),
        packed(tensor(shape=[True, 2])),
        packed(tensor(shape=[2**40, 2**40])),
        packed(tensor(shape=[1] * 40, raw=b"a")),
        packed(tensor(raw=1)),
        packed(tensor(raw=msgpack.ExtType(1, b"ab"))),
        packed(tensor(raw=msgpack.ExtType(2, b"ab"))),
        packed(["uint8", [2]]),
        b"\x81\xa1f\x82\xa4data\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1f\x82\xa4data" + b"\x91" * 100_000,
        b"\x82\xa1f\x01\xa1f\x01",
        b"\x81\xa1\xff\x01",
    ],
)
def test_what_is_no_item_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_item(data)


def test_pickles_are_never_opened() -> None:
    bomb = b"cos\nsystem\n(S'false'\ntR."
    with pytest.raises(DecodeError, match="extension type code 1"):
        decode_item(packed(tensor(raw=msgpack.ExtType(1, bomb), shape=[len(bomb)])))


def test_announced_sizes_allocate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = b"\x81\xa1f\x82\xa4data\x93\xa5uint8\x91\xce\x7f\xff\xff\xff\xc9\x7f\xff\xff\xff\x03ab"
    limit = sys.getsizeof(huge) * 100
    with pytest.raises(DecodeError, match="truncated"):
        decode_item(huge)
    assert _peak_of(lambda: _ignore(huge)) < limit * 10


def _ignore(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_item(data)


def _peak_of(call: Callable[[], None]) -> int:
    import tracemalloc

    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["", "@@@@", "A", "wQ==", "AAAA", "é"])
def test_base64_of_no_item_is_the_callers_fault(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        item_bytes(text)
    assert (caught.value.status, caught.value.type, caught.value.param) == (
        400,
        "BadRequestError",
        None,
    )


SIZES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype, shape = draw(st.sampled_from(sorted(ITEM_SIZES))), draw(SIZES)
    size = math.prod(shape) * ITEM_SIZES[dtype]
    return Tensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


NUMBERS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
VALUES = st.recursive(NUMBERS | tensors(), lambda inner: st.lists(inner, max_size=3), max_leaves=6)
SLICES = st.lists(st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=3), max_size=3)
MERGING = st.one_of(
    st.tuples(st.just("batched"), st.fixed_dictionaries({"keep_on_cpu": st.booleans()})),
    st.tuples(
        st.just("flat"),
        st.fixed_dictionaries({"keep_on_cpu": st.booleans(), "slices": SLICES, "dim": st.just(0)}),
    ),
    st.tuples(
        st.just("shared"),
        st.fixed_dictionaries({"keep_on_cpu": st.booleans(), "batch_size": st.integers(1, 9)}),
    ),
)
FIELDS = st.builds(lambda value, merging: Field(value, *merging), VALUES, MERGING)
ITEMS = st.dictionaries(st.text(min_size=1, max_size=40), FIELDS, max_size=20)


@given(ITEMS)
def test_decoding_gives_back_what_was_encoded_and_encodes_alike(fields: dict[str, Field]) -> None:
    data = encode_item(fields)
    decoded = decode_item(data)
    assert decoded == fields
    assert list(decoded) == list(fields)
    assert encode_item(decoded) == data


@given(ITEMS)
def test_the_bytes_are_what_a_common_encoder_writes(fields: dict[str, Field]) -> None:
    plain = {
        name: {"data": _plain(f.data), "field": [f.factory, f.kwargs]} for name, f in fields.items()
    }
    assert encode_item(fields) == msgpack.packb(plain)


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        ext = msgpack.ExtType(RAW_VIEW, bytes(value.data))
        return [value.dtype, list(value.shape), ext]
    return [_plain(v) for v in value] if isinstance(value, list) else value


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    with suppress(DecodeError):
        encode_item(decode_item(data))


@given(st.data())
def test_a_damaged_item_decodes_or_is_refused(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(items()))
    at = data.draw(st.integers(0, len(original) - 1))
    damaged = original[:at] + bytes([data.draw(st.integers(0, 255))]) + original[at + 1 :]
    cut = damaged[: data.draw(st.integers(0, len(damaged)))]
    for candidate in (damaged, cut):
        try:
            decode_item(candidate)
        except DecodeError:
            continue
