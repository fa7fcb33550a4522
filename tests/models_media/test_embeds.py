"""Embeddings made elsewhere: tensors in, nothing else, and within bounds."""

import base64
import io
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import torch

from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import BlobRef
from schemas.errors import ApiError
from schemas.mm_item import Tensor, decode_item
from tests.models_media.builders import LLAVA, QWEN, load, make_pipeline
from workers.models.embeds import load_fields
from workers.models.families.adapter import ModalityFacts
from workers.render.media import MediaPart

LIMIT = 1 << 20
FACTS = ModalityFacts(metadata=(), embeds=("image_embeds", "image_grid_thw"))


def torch_file(value: Any) -> str:
    file = io.BytesIO()
    torch.save(value, file)
    return base64.b64encode(file.getvalue()).decode()


def numpy_file(value: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.save(file, value)
    return base64.b64encode(file.getvalue()).decode()


def part(source: Any) -> MediaPart:
    return MediaPart("image", "embeds", "image_embeds", source)


def fields(embeds: str, grid: Any = (1, 4, 4)) -> dict[str, Any]:
    grid = list(grid) if isinstance(grid, tuple) else grid
    return load_fields(part({"image_embeds": embeds, "image_grid_thw": grid}), FACTS, LIMIT)


def test_tensors_of_torch_and_numpy_are_read() -> None:
    value = torch.randn(4, 8)

    assert torch.equal(fields(torch_file(value))["image_embeds"], value)
    assert torch.equal(fields(numpy_file(value.numpy()))["image_embeds"], value)


def test_a_grid_may_be_a_list_or_a_tensor() -> None:
    embeds = torch_file(torch.randn(4, 8))

    assert fields(embeds)["image_grid_thw"] == [1, 4, 4]
    assert fields(embeds, torch_file(torch.tensor([[1, 4, 4]])))["image_grid_thw"] == [1, 4, 4]


def test_a_batch_of_one_is_one() -> None:
    assert fields(torch_file(torch.randn(1, 4, 8)))["image_embeds"].shape == (4, 8)


class Dangerous:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize(
    "value",
    [
        base64.b64encode(pickle.dumps(Dangerous())).decode(),
        base64.b64encode(b"garbage").decode(),
        "AAAA",
        torch_file({"a": 1}),
        torch_file(torch.randn(8)),
        torch_file(torch.randn(2, 4, 8)),
        torch_file(torch.ones(4, 8, dtype=torch.int64)),
        torch_file(torch.eye(4).to_sparse()),
        torch_file(torch.empty(4, 8, device="meta")),
        torch_file(torch.ones(4, 8, dtype=torch.bool)),
        torch_file(torch.ones(4, 8, dtype=torch.complex128)),
        torch_file(torch.ones(4, 8).to(torch.float8_e4m3fn)),
        torch_file(torch.quantize_per_tensor(torch.ones(4, 8), 0.1, 0, torch.qint8)),
        torch_file([torch.ones(4, 8)] * 2),
        torch_file(torch.zeros(0, 8)),
        torch_file(torch.full((4, 8), float("nan"))),
        torch_file(torch.full((4, 8), float("inf"), dtype=torch.bfloat16)),
        torch_file(torch.ones(1).expand(4, 8)),
        torch_file(torch.ones(8).expand(4, 8)),
        numpy_file(np.full((4, 8), -np.inf)),
        numpy_file(np.ones((4, 8), dtype=[("a", "<f4")])),
        numpy_file(np.ones((4, 8), dtype="<c8")),
        numpy_file(np.array([object()], dtype=object)),
        "not base64!",
    ],
)
def test_anything_but_a_dense_matrix_of_floats_is_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ApiError) as caught:
        fields(value)

    assert caught.value.status == 400
    assert "executed" not in capsys.readouterr().out


def test_a_small_file_that_declares_a_large_tensor_is_refused() -> None:
    spread = torch.zeros(1).expand(1 << 20, 8)

    with pytest.raises(ApiError, match="VLLM_MAX_EMBED_DECODE_BYTES"):
        fields(torch_file(spread))


def test_a_compressed_archive_is_weighed_by_what_it_unpacks_to() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(LIMIT + 1))

    with pytest.raises(ApiError, match="VLLM_MAX_EMBED_DECODE_BYTES"):
        fields(base64.b64encode(file.getvalue()).decode())


def test_a_small_view_that_repeats_its_numbers_is_refused_before_it_is_made() -> None:
    spread = torch.zeros(1).expand(4096, 64)  # a megabyte, within the limit

    with pytest.raises(ApiError, match="declares 1048576 bytes, but holds 4"):
        fields(torch_file(spread))


def numpy_header(shape: str) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


@pytest.mark.parametrize("shape", ["(4, 8)", "(512, 512)", "(-4, -8)", "(4, -8)", "()"])
def test_a_numpy_file_that_declares_more_than_it_holds_is_refused(shape: str) -> None:
    data = numpy_header(shape) + bytes(16 if shape != "()" else 0)

    with pytest.raises(ApiError) as caught:
        fields(base64.b64encode(data).decode())

    assert (caught.value.status, caught.value.param) == (400, "image_embeds")


def test_numpy_files_of_any_order_are_read() -> None:
    value = np.arange(32, dtype="<f4").reshape(4, 8)

    for given in (np.asfortranarray(value), value.astype(">f4")):
        assert np.array_equal(fields(numpy_file(given))["image_embeds"].numpy(), value)


def test_an_archive_that_unpacks_to_more_than_it_holds_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(LIMIT // 2))

    with pytest.raises(ApiError, match="but holds"):
        fields(base64.b64encode(file.getvalue()).decode())


def test_an_archive_of_many_entries_is_not_looked_into() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(100):
            archive.writestr(f"archive/data/{number}", b"")

    with pytest.raises(ApiError, match="more than one tensor"):
        fields(base64.b64encode(file.getvalue()).decode())


def test_a_large_pickle_beside_a_tensor_is_not_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"N0" * 40_000 + b"N.")

    with pytest.raises(ApiError, match="more than a tensor"):
        fields(base64.b64encode(file.getvalue()).decode())


def test_a_long_grid_is_refused() -> None:
    embeds = torch_file(torch.randn(4, 8))

    for grid in ([1] * 100_000, torch_file(torch.ones(100_000, dtype=torch.int64))):
        with pytest.raises(ApiError, match="100000 numbers"):
            fields(embeds, grid)


@pytest.mark.parametrize(
    "grid",
    [[2**58 + 1, 8, 8], [2**70, 4, 4], [-1, 4, 4], [0, 4, 4], [1, 3, 4], [1, 4], [1, 4, 4, 4],
     [1, 4, True], [1.0, 4, 4], "x", [[1, 4, 4]]],
)  # fmt: skip
async def test_no_grid_but_that_of_the_rows_will_do(grid: Any) -> None:
    pipeline = make_pipeline(folder=QWEN, model={"enable_mm_embeds": True})
    source = {"image_embeds": torch_file(torch.randn(4, 64)), "image_grid_thw": grid}

    with pytest.raises(ApiError) as caught:
        await load(pipeline, part(source))

    assert caught.value.status == 400


@pytest.mark.parametrize("source", ["AAAA", {"image_embeds": "AAAA"}, {"other": "AAAA"}, {}])
def test_fields_the_family_needs_must_be_there(source: Any) -> None:
    with pytest.raises(ApiError, match="needs the fields"):
        load_fields(part(source), FACTS, LIMIT)


async def test_rows_must_fill_the_placeholder() -> None:
    pipeline = make_pipeline(folder=QWEN, model={"enable_mm_embeds": True})
    source = {"image_embeds": torch_file(torch.randn(5, 64)), "image_grid_thw": [1, 4, 4]}

    with pytest.raises(ApiError, match="5 rows for 4 positions"):
        await load(pipeline, part(source))


async def test_the_width_is_held_against_the_model_where_it_is_known() -> None:
    pipeline = make_pipeline(folder=LLAVA, model={"enable_mm_embeds": True})

    with pytest.raises(ApiError, match="dimension mismatch"):
        await load(pipeline, part(torch_file(torch.randn(5, 7))))
    (item,) = await load(pipeline, part(torch_file(torch.randn(5, 64))))
    assert len(item.replacement) == 5


async def test_values_and_dtype_arrive_unchanged() -> None:
    blobs = MemoryBlobs()
    pipeline = make_pipeline(blobs=blobs, model={"enable_mm_embeds": True})
    value = torch.randn(4, 64, dtype=torch.float16)
    source = {"image_embeds": torch_file(value), "image_grid_thw": [1, 4, 4]}

    (item,) = await load(pipeline, part(source))

    assert isinstance(item.kwargs, BlobRef)
    stored = decode_item(await blobs.get(item.kwargs))["image_embeds"].data
    assert isinstance(stored, Tensor)
    assert (stored.dtype, stored.shape) == ("float16", (4, 64))
    assert bytes(stored.data) == value.numpy().tobytes()
