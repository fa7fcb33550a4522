"""What every encoder cache promises, and what the directory layout adds."""

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import SettingsError, StoreError
from runtime.storage import Embedding, EncoderCache
from runtime.storage.encoder_cache import DirectoryCache, open_encoder_cache
from runtime.storage.safetensors import Layout, head_of, header_length, layout_of

ENTRY = Embedding("float32", (2, 3), bytes(range(24)))


@pytest.fixture(params=["directory"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> EncoderCache:
    return open_encoder_cache(f"{request.param}://{tmp_path}/ec")


async def get(cache: EncoderCache, mm_hash: str, **changes) -> Embedding | None:
    return await cache.get(
        mm_hash, **({"rows": 2, "width": 3, "dtypes": ("float32", "bfloat16")} | changes)
    )


@pytest.mark.parametrize(
    "entry",
    [ENTRY, Embedding("bfloat16", (2, 3), bytes(12)), Embedding("float16", (1, 6), bytes(12))],
)
async def test_an_entry_comes_back_as_it_was_put(cache: EncoderCache, entry: Embedding):
    descriptor = await cache.put("abc", entry)

    rows, width = entry.shape
    assert await get(cache, "abc", rows=rows, width=width, dtypes=[entry.dtype]) == entry
    assert descriptor["shape"] == [rows, width]
    assert descriptor["size_bytes"] == len(entry.data)
    assert descriptor["dtype"] == entry.dtype


async def test_an_absent_entry_is_none(cache: EncoderCache):
    assert await get(cache, "abc") is None
    assert not await cache.contains("abc")


@pytest.mark.parametrize("changes", [{"rows": 3}, {"width": 2}, {"dtypes": ("float16",)}])
async def test_an_entry_of_another_form_is_none(cache: EncoderCache, changes):
    await cache.put("abc", ENTRY)

    assert await get(cache, "abc", **changes) is None
    assert await cache.contains("abc")


async def test_the_checksum_of_the_descriptor_is_checked(cache: EncoderCache):
    descriptor = await cache.put("abc", ENTRY)

    assert await get(cache, "abc", checksum=descriptor["checksum"]) == ENTRY
    assert await get(cache, "abc", checksum="0" * 64) is None


async def test_a_second_put_leaves_the_entry_and_announces_it(cache: EncoderCache):
    first = await cache.put("abc", ENTRY)
    again = await cache.put("abc", Embedding("float32", (2, 3), bytes(24)))

    assert again == first
    assert await get(cache, "abc", checksum=first["checksum"]) == ENTRY


async def test_an_entry_that_proved_unusable_is_replaced(cache: EncoderCache):
    other = Embedding("float32", (2, 3), bytes(24))
    await cache.put("abc", ENTRY)

    descriptor = await cache.put("abc", other, replace=True)

    assert await get(cache, "abc", checksum=descriptor["checksum"]) == other


async def test_many_writers_of_one_hash_leave_one_whole_entry(cache: EncoderCache):
    entry = Embedding("float32", (256, 64), os.urandom(256 * 64 * 4))

    descriptors = await asyncio.gather(*(cache.put("abc", entry) for _ in range(8)))

    assert all(d == descriptors[0] for d in descriptors)
    assert await get(cache, "abc", rows=256, width=64) == entry


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "/etc", "a\\b", "a\0", ".hidden"])
async def test_a_hash_with_path_characters_is_refused(cache: EncoderCache, name: str):
    for call in (cache.put(name, ENTRY), get(cache, name), cache.contains(name)):
        with pytest.raises(StoreError):
            await call


@pytest.mark.parametrize(
    "entry",
    [
        Embedding("float32", (2, 3), bytes(23)),
        Embedding("float32", (2, 3, 1), bytes(24)),
        Embedding("float32", (0, 3), b""),
        Embedding("int64", (2, 3), bytes(48)),
    ],
)
async def test_what_is_no_embedding_is_not_stored(cache: EncoderCache, entry: Embedding):
    with pytest.raises(StoreError):
        await cache.put("abc", entry)

    assert not await cache.contains("abc")


async def test_the_file_is_what_safetensors_writes(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.numpy")
    numpy = pytest.importorskip("numpy")
    cache = open_encoder_cache(f"directory://{tmp_path}")
    await cache.put("ours", ENTRY)
    theirs = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    (tmp_path / "theirs").mkdir()
    safetensors.save_file({"ec_cache": theirs}, tmp_path / "theirs" / "encoder_cache.safetensors")

    ours = safetensors.load_file(tmp_path / "ours" / "encoder_cache.safetensors")["ec_cache"]
    read = await get(cache, "theirs")

    assert (ours.shape, ours.tobytes()) == ((2, 3), ENTRY.data)
    assert read == Embedding("float32", (2, 3), theirs.tobytes())


@pytest.mark.parametrize("keep", [0, 4, 8, 20, -1])
async def test_a_file_cut_short_counts_as_absent_and_is_made_again(tmp_path: Path, keep: int):
    cache = open_encoder_cache(f"directory://{tmp_path}")
    await cache.put("abc", ENTRY)
    path = entry_file(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])

    assert await get(cache, "abc") is None
    assert not await cache.contains("abc")
    await cache.put("abc", ENTRY)
    assert await get(cache, "abc") == ENTRY


async def test_a_file_with_other_bytes_counts_as_absent_and_is_made_again(tmp_path: Path):
    cache = open_encoder_cache(f"directory://{tmp_path}")
    descriptor = await cache.put("abc", ENTRY)
    path = entry_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    assert await get(cache, "abc") is None
    assert await cache.put("abc", ENTRY) == descriptor
    assert await get(cache, "abc") == ENTRY


async def test_probing_leaves_no_trace(tmp_path: Path):
    cache = open_encoder_cache(f"directory://{tmp_path}")

    await get(cache, "abc")
    await cache.contains("abc")

    assert list(tmp_path.iterdir()) == []


async def test_namespaces_do_not_see_each_other(tmp_path: Path):
    one, two, flat = (
        open_encoder_cache(f"directory://{tmp_path}", name) for name in ("w1/tenant", "w2", "")
    )
    await one.put("abc", ENTRY)

    assert await one.contains("abc")
    assert not await two.contains("abc")
    assert not await flat.contains("abc")


async def test_old_entries_and_leftovers_are_swept(tmp_path: Path):
    cache = DirectoryCache(tmp_path)
    await cache.put("old", ENTRY)
    await cache.put("young", ENTRY)
    leftover = tmp_path / "crashed" / ".encoder_cache.safetensors.1-2"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    for path in (entry_file(tmp_path, "old"), leftover):
        os.utime(path, (time.time() - 7200,) * 2)

    assert await cache.sweep(max_age_s=3600) == 1

    assert [path.name for path in tmp_path.iterdir()] == ["young"]


async def test_reading_makes_an_entry_young_again(tmp_path: Path):
    cache = DirectoryCache(tmp_path)
    await cache.put("abc", ENTRY)
    os.utime(entry_file(tmp_path), (time.time() - 7200,) * 2)

    await get(cache, "abc")

    assert await cache.sweep(max_age_s=3600) == 0


@pytest.mark.parametrize("url", ["", "/x", "directory://x", "file:///x", "directory:x"])
def test_a_bad_url_is_one_readable_line(url: str):
    with pytest.raises(SettingsError) as caught:
        open_encoder_cache(url)

    assert "\n" not in str(caught.value)


def test_a_root_that_is_a_file_is_a_settings_error(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError):
        open_encoder_cache(f"directory://{tmp_path}/file")
    with pytest.raises(SettingsError):
        open_encoder_cache(f"directory://{tmp_path}", "../up")


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_a_layout_or_a_store_error(data: bytes, size: int):
    with suppress(StoreError):
        layout_of(data[8 : 8 + header_length(data[:8])], size)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_a_header_of_any_json_is_a_layout_or_a_store_error(value):
    for entry in (value, {"dtype": "F32", "shape": value, "data_offsets": [0, 4]}):
        with suppress(StoreError):
            layout_of(json.dumps({"ec_cache": entry}).encode(), 4)


@given(st.integers(1, 50), st.integers(1, 50), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_layout_reads_what_head_writes(rows: int, width: int, dtype: str):
    data = bytes(rows * width * (4 if dtype == "float32" else 2))
    head = head_of(Embedding(dtype, (rows, width), data), {"checksum": "c0ffee"})

    layout = layout_of(head[8:], len(data))

    assert header_length(head[:8]) == len(head) - 8
    assert len(head) % 8 == 0
    names = {"checksum": "c0ffee"}
    assert layout == Layout(dtype, (rows, width), len(data), "c0ffee", names)


def entry_file(root: Path, mm_hash: str = "abc") -> Path:
    return root / mm_hash / "encoder_cache.safetensors"


@pytest.fixture(params=[False, True], ids=["by key", "flat"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryCache:
    """Either layout, several owners in it."""
    return DirectoryCache(tmp_path, is_flat=request.param)


OTHER = Embedding("float32", (2, 3), bytes(24))


async def test_an_entry_is_found_by_its_own_key_only(shared: DirectoryCache):
    await shared.put("abc", OTHER, key="=theirs")

    assert await get(shared, "abc", key="=theirs") == OTHER
    for key in ("", "=mine"):
        assert await get(shared, "abc", key=key) is None
        assert not await shared.contains("abc", key=key)


async def test_what_another_put_under_the_hash_does_not_stay_in_the_way(shared: DirectoryCache):
    await shared.put("abc", OTHER, key="=theirs", alias="=alias")

    await shared.put("abc", ENTRY)

    assert await get(shared, "abc") == ENTRY
    assert await shared.contains("abc")


async def test_an_alias_is_what_was_put_under_it_last(shared: DirectoryCache):
    await shared.put("abc", OTHER, key="=one", alias="=alias")
    await shared.put("abc", ENTRY, key="=two", alias="=alias")
    await shared.put("abc", ENTRY, key="=two", alias="=alias")

    assert await get(shared, "abc", key="abc", alias="=alias") == ENTRY
    assert await get(shared, "abc", key="abc", alias="=anothers") is None
    assert await get(shared, "abc", key="abc") is None


async def test_what_vllm_wrote_belongs_to_its_hash(tmp_path: Path):
    """Its writer notes nothing beside the tensor."""
    await DirectoryCache(tmp_path).put("abc", ENTRY)
    flat = DirectoryCache(tmp_path, is_flat=True)

    assert await get(flat, "abc") == ENTRY
    assert await get(flat, "abc", key="=a-tenants", alias="=alias") == ENTRY
    assert await get(flat, "abc", key="=callers-tensors") is None


async def test_an_odd_checksum_of_a_caller_is_a_wrong_one(shared: DirectoryCache):
    await shared.put("abc", ENTRY)

    for checksum in ([], {}, 5, "x", [["x"]]):
        assert await get(shared, "abc", checksum=checksum) is None


@pytest.mark.parametrize("notes", [{"checksum": 5}, {"checksum": {}}, {"key": []}, [], "x", None])
def test_notes_that_are_no_strings_are_no_notes(notes: object):
    entry = {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}

    with pytest.raises(StoreError):
        layout_of(json.dumps({"__metadata__": notes, "ec_cache": entry}).encode(), 4)
