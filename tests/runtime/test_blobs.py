"""What every blob store promises, whatever it is made of; and opening stores by URL."""

import asyncio
import os
import time
from pathlib import Path

import obstore
import pytest
from blake3 import blake3

from runtime.errors import SettingsError, StoreError
from runtime.storage import BlobStore
from runtime.storage.blobs import open_blobs
from runtime.storage.memory_blobs import MemoryBlobs
from runtime.storage.object_blobs import ObstoreBlobs
from schemas.envelope import BlobRef

LARGE = bytes(range(256)) * 8192


@pytest.fixture(params=["file", "bucket", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "bucket":
        return ObstoreBlobs(obstore.store.MemoryStore())
    return open_blobs("memory:///" if request.param == "memory" else (tmp_path / "s").as_uri())


@pytest.mark.parametrize("data", [b"", b"small", LARGE])
async def test_content_comes_back_under_its_digest(blobs: BlobStore, data: bytes):
    ref = await blobs.put(data)

    assert ref == BlobRef(digest=blake3(data).hexdigest(), size=len(data))
    assert await blobs.get(ref) == data


async def test_a_missing_blob_is_a_store_error(blobs: BlobStore):
    with pytest.raises(StoreError, match="missing"):
        await blobs.get(BlobRef(digest="0" * 64, size=1))


async def test_a_reference_with_another_size_is_refused(blobs: BlobStore):
    ref = await blobs.put(b"data")

    with pytest.raises(StoreError, match="not what was written"):
        await blobs.get(BlobRef(digest=ref.digest, size=5))


async def test_only_the_first_of_many_writes_a_name(blobs: BlobStore):
    results = await asyncio.gather(
        *(blobs.put_if_absent("outcomes/r-1", str(n).encode()) for n in range(8))
    )

    assert sum(results) == 1
    assert await blobs.get_named("outcomes/r-1") == str(results.index(True)).encode()


async def test_a_named_object_is_replaced(blobs: BlobStore):
    assert await blobs.get_named("n") is None
    await blobs.put_named("n", b"1")
    await blobs.put_named("n", b"2")

    assert await blobs.get_named("n") == b"2"


@pytest.mark.parametrize("data", [b"", b"small", LARGE])
async def test_a_named_object_is_what_was_written(blobs: BlobStore, data: bytes):
    assert await blobs.put_if_absent("n", data)
    assert await blobs.get_named("n") == data

    await blobs.put_named("n", data + b"!")
    assert not await blobs.put_if_absent("n", data)

    assert await blobs.get_named("n") == data + b"!"


async def test_only_what_is_there_and_whole_is_refreshed(blobs: BlobStore):
    ref = await blobs.put(b"data")

    assert await blobs.refresh(ref)
    assert not await blobs.refresh(BlobRef(digest="0" * 64, size=4))


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a\0b", "a\\b"])
async def test_names_that_mean_something_to_a_file_system_are_refused(blobs: BlobStore, name: str):
    with pytest.raises(StoreError):
        await blobs.put_named(name, b"")
    with pytest.raises(StoreError):
        await blobs.get_named(name)
    with pytest.raises(StoreError):
        await blobs.put_if_absent(name, b"")


async def test_a_sweep_keeps_what_is_young(blobs: BlobStore):
    ref = await blobs.put(b"data")
    await blobs.put_named("n", b"1")

    assert await blobs.sweep(max_age_s=60) == 0
    assert await blobs.get(ref) == b"data"


async def test_a_digest_from_a_stranger_cannot_leave_the_store(tmp_path: Path):
    (tmp_path / "secret").write_bytes(b"x")
    blobs = open_blobs((tmp_path / "s").as_uri())

    with pytest.raises(StoreError):
        await blobs.get(BlobRef.model_construct(digest="../../secret", size=1))


async def test_changed_content_is_noticed(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(b"data")
    blob_file(tmp_path, ref).write_bytes(b"dat4")

    with pytest.raises(StoreError, match="not what was written"):
        await blobs.get(ref)


async def test_a_file_cut_short_is_written_again_by_a_repeat(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(b"data")
    blob_file(tmp_path, ref).write_bytes(b"da")

    await blobs.put(b"data")

    assert await blobs.get(ref) == b"data"


async def test_a_repeat_refreshes_the_age_of_an_old_file_only(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(b"data")
    path = blob_file(tmp_path, ref)
    inode = path.stat().st_ino

    await blobs.put(b"data")
    assert path.stat().st_ino == inode
    make_old(path, 3600)
    await blobs.put(b"data")

    assert time.time() - path.stat().st_mtime < 60


async def test_a_refresh_makes_an_old_file_young(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(b"data")
    make_old(blob_file(tmp_path, ref), 3600)

    assert await blobs.refresh(ref)

    assert time.time() - blob_file(tmp_path, ref).stat().st_mtime < 60
    assert await blobs.get(ref) == b"data"


async def test_a_file_cut_short_is_not_refreshed(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(b"data")
    blob_file(tmp_path, ref).write_bytes(b"da")

    assert not await blobs.refresh(ref)


async def test_nothing_is_left_beside_the_files_of_a_store(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(LARGE)
    await blobs.put_named("a/b", b"1")
    await blobs.put_if_absent("a/b", b"2")
    await blobs.put_if_absent("a/c", b"3")

    files = {path for path in tmp_path.rglob("*") if path.is_file()}

    named = tmp_path / "named" / "a"
    assert files == {blob_file(tmp_path, ref), named / "b", named / "c"}


async def test_what_a_crashed_writer_left_is_swept_and_not_counted(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    ref = await blobs.put(b"data")
    aside = blob_file(tmp_path, ref).with_name(".unfinished")
    aside.write_bytes(b"da")
    make_old(aside, 7200)

    assert await blobs.sweep(max_age_s=3600) == 0

    assert not aside.exists()
    assert await blobs.get(ref) == b"data"


async def test_old_files_are_swept_and_strangers_left_alone(tmp_path: Path):
    blobs = open_blobs(tmp_path.as_uri())
    old, young = await blobs.put(b"old"), await blobs.put(b"young")
    await blobs.put_named("outcomes/old", b"")
    await blobs.put_named("store-id", b"")
    (tmp_path / "stranger").write_bytes(b"")
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        make_old(path, 7200)
    make_old(blob_file(tmp_path, young), 0)

    assert await blobs.sweep(max_age_s=3600) == 2

    assert await blobs.get(young) == b"young"
    assert await blobs.get_named("store-id") == b""
    assert await blobs.get_named("outcomes/old") is None
    assert (tmp_path / "stranger").exists()
    with pytest.raises(StoreError):
        await blobs.get(old)


async def test_memory_hands_out_the_very_bytes():
    blobs = MemoryBlobs()

    ref = await blobs.put(LARGE)

    assert await blobs.get(ref) is LARGE


async def test_memory_is_swept_by_last_use():
    now = 0.0
    blobs = MemoryBlobs(clock=lambda: now)
    one, two = await blobs.put(b"1"), await blobs.put(b"2")
    now = 100.0
    await blobs.put(b"2")

    assert await blobs.sweep(max_age_s=50) == 1
    assert await blobs.get(two) == b"2"
    with pytest.raises(StoreError):
        await blobs.get(one)


async def test_a_store_that_does_not_answer_is_a_store_error(tmp_path: Path):
    blobs = open_blobs((tmp_path / "s").as_uri())
    ref = await blobs.put(b"data")
    blob_file(tmp_path / "s", ref).unlink()
    (tmp_path / "s" / "blobs" / ref.digest[:2]).rmdir()
    (tmp_path / "s" / "blobs" / ref.digest[:2]).write_bytes(b"a file where a directory was")

    with pytest.raises(StoreError):
        await blobs.put(b"data")


@pytest.mark.parametrize(
    "url", ["", "nonsense", "ftp://host/x", "file://relative", "file:///a?b", "/tmp/x"]
)
def test_a_bad_url_is_one_readable_line(url: str):
    with pytest.raises(SettingsError) as caught:
        open_blobs(url)

    assert repr(url) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_memory_is_private(tmp_path: Path):
    assert not open_blobs("memory:///").is_shared
    assert open_blobs(tmp_path.as_uri()).is_shared
    assert isinstance(open_blobs("s3://bucket/prefix"), ObstoreBlobs)


def blob_file(root: Path, ref: BlobRef) -> Path:
    return root / "blobs" / ref.digest[:2] / ref.digest


def make_old(path: Path, age_s: float) -> None:
    os.utime(path, (time.time() - age_s,) * 2)


async def test_memory_is_bounded_and_keeps_what_was_used_last():
    blobs = MemoryBlobs(max_bytes=4_000)
    first = await blobs.put(b"a" * 1_000)
    second = await blobs.put(b"b" * 1_000)
    await blobs.get(first)

    await blobs.put(b"c" * 1_000)

    assert await blobs.get(first) == b"a" * 1_000
    with pytest.raises(StoreError, match="missing"):
        await blobs.get(second)


async def test_what_somebody_holds_is_kept_until_it_is_let_go():
    now = 0.0
    blobs = MemoryBlobs(max_bytes=250_000, clock=lambda: now)
    held = [os.urandom(100_000) for _ in range(4)]
    refs = [await blobs.put(data) for data in held]
    now = 10.0
    assert [await blobs.get(ref) for ref in refs] == held

    held.clear()
    last = await blobs.put(os.urandom(100_000))

    assert await blobs.get(last)
    assert blobs.held_bytes <= 250_000


async def test_what_was_just_named_to_somebody_is_kept_for_a_moment():
    now = 0.0
    blobs = MemoryBlobs(max_bytes=250_000, clock=lambda: now)
    first = await blobs.put(os.urandom(100_000))
    now = 10.0
    assert await blobs.refresh(first)
    others = [await blobs.put(os.urandom(100_000)) for _ in range(3)]

    assert all([await blobs.get(ref) for ref in (first, *others)])

    now = 20.0
    await blobs.put(os.urandom(100_000))
    assert blobs.held_bytes <= 250_000


async def test_memory_stays_bounded_under_many_small_names():
    blobs = MemoryBlobs(max_bytes=100_000)

    for number in range(10_000):
        await blobs.put_if_absent(f"outcomes/{number}", b"x")

    assert blobs.held_bytes <= 100_000
    assert await blobs.get_named("outcomes/9999") == b"x"
