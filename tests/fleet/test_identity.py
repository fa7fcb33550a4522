"""Whose picture is it: what a caller names never answers for what others send."""

import base64
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.storage.digest import digest_of
from schemas.identity import entry_key
from schemas.mm_item import Field, Fields, Tensor, decode_item, encode_item
from schemas.routes import Stop
from tests.fleet.asking import CHAT, GENERATE, agreed, chat, generate, picture
from tests.fleet.embedded import Embedded, Running, whole_fleet

RENDER = "/v1/chat/completions/render"
GREEN, RED = picture(1), picture(2)


def changed(text: str, change: Callable[[Fields], object]) -> str:
    """A base64 item after a change of its fields."""
    fields = dict(decode_item(base64.b64decode(text)))
    change(fields)
    return base64.b64encode(encode_item(fields)).decode()


def with_pixels(dtype: str, data: bytes) -> Callable[[Fields], object]:
    def change(fields: Fields) -> None:
        old = fields["pixel_values"]
        assert isinstance(old.data, Tensor)
        tensor = Tensor(dtype, old.data.shape, data)
        fields["pixel_values"] = Field(tensor, old.factory, old.kwargs)

    return change


def with_grid(*grid: int, shape: tuple[int, ...] | None = None) -> Callable[[Fields], object]:
    def change(fields: Fields) -> None:
        old = fields["image_grid_thw"]
        tensor = Tensor("int64", shape or (len(grid),), struct.pack(f"<{len(grid)}q", *grid))
        fields["image_grid_thw"] = Field(tensor, old.factory, old.kwargs)

    return change


async def rendered(fleet: Embedded, url: str, **options: object) -> dict:
    return await fleet.ask(RENDER, chat("What?", [url], **options))


async def tokens(fleet: Embedded, body: dict) -> list[int]:
    return (await fleet.ask(GENERATE, body))["choices"][0]["token_ids"]


async def named_as(fleet: Embedded, url: str, mm_hash: str) -> dict:
    """A generate body with one picture's tensors under a hash of choice."""
    body = generate(await rendered(fleet, url), payload="kwargs_data")
    body["features"]["mm_hashes"] = {"image": [mm_hash]}
    return body


async def hash_of(fleet: Embedded, url: str) -> str:
    return (await rendered(fleet, url))["features"]["mm_hashes"]["image"][0]


async def truth(folder: Path, body: dict) -> dict:
    """What a fleet answers that nobody has asked before."""
    async with Running(whole_fleet(folder), folder) as fresh:
        return agreed(await fresh.ask(CHAT, body))


async def test_tensors_under_another_pictures_hash_are_never_that_picture(
    embedded: Embedded, tmp_path: Path
) -> None:
    about_green = chat("What?", [GREEN])
    green = await hash_of(embedded, GREEN)

    forged = await tokens(embedded, await named_as(embedded, RED, green))
    answer = agreed(await embedded.ask(CHAT, about_green))

    assert answer == await truth(tmp_path / "fresh", about_green)
    own = generate(await rendered(embedded, GREEN), payload="kwargs_data")
    red = generate(await rendered(embedded, RED), payload="kwargs_data")
    assert forged == await tokens(embedded, red) != await tokens(embedded, own)


async def test_a_picture_that_is_called_like_another_is_never_that_one(
    embedded: Embedded, tmp_path: Path
) -> None:
    about_green = chat("What?", [GREEN])
    forged = chat("What?", [RED])
    forged["messages"][0]["content"][0]["uuid"] = await hash_of(embedded, GREEN)

    red = agreed(await embedded.ask(CHAT, forged))
    green = agreed(await embedded.ask(CHAT, about_green))

    assert red == agreed(await embedded.ask(CHAT, chat("What?", [RED])))
    assert green == await truth(tmp_path / "fresh", about_green) != red


async def test_a_uuid_answers_about_the_bytes_that_came_with_it(embedded: Embedded) -> None:
    def about(url: str | None) -> dict:
        body = chat("What?", [url or ""])
        part = {"type": "image_url", "image_url": url and {"url": url}, "uuid": "clip-1"}
        body["messages"][0]["content"][0] = part
        return body

    said = {url: await embedded.say(about(url)) for url in (RED, GREEN)}

    assert said == {url: await embedded.say(chat("What?", [url])) for url in (RED, GREEN)}
    assert said[RED] != said[GREEN]
    assert await embedded.say(about(None)) == said[GREEN]
    salted = about(None) | {"cache_salt": "other"}
    assert "Cache miss" in (await embedded.ask(CHAT, salted, status=400))["error"]["message"]


async def test_one_hash_may_mean_two_contents_in_one_request(embedded: Embedded) -> None:
    whole = await embedded.ask(RENDER, chat("Two", [GREEN, RED]))
    plain = generate(whole, payload="kwargs_data")
    same = generate(whole, payload="kwargs_data")
    same["features"]["mm_hashes"] = {"image": ["same", "same"]}

    assert await tokens(embedded, same) == await tokens(embedded, plain)


async def test_render_client_generate_goes_round_with_each_payload(embedded: Embedded) -> None:
    body = await rendered(embedded, GREEN)
    whole, tensors = generate(body), generate(body, payload="kwargs_data")

    first = await embedded.ask(GENERATE, whole)
    told = first["ec_transfer_params"]
    bound = generate(body, payload="mm_metadata", ec_transfer_params=told)
    bare = generate(
        body,
        payload="mm_metadata",
        ec_transfer_params={"ec_items": [{"mm_hash": told["ec_items"][0]["mm_hash"]}]},
    )

    answers = [await tokens(embedded, b) for b in (tensors, bound, bare)]
    assert answers == [first["choices"][0]["token_ids"]] * 3
    content = digest_of(base64.b64decode(body["features"]["kwargs_data"]["image"][0]))
    assert told["ec_items"][0]["content_digest"] == content
    assert len(embedded.sent_to(Stop.ENCODE)) == 2


async def test_a_descriptor_keeps_its_content_whatever_is_sent_under_its_hash_later(
    embedded: Embedded,
) -> None:
    body = await rendered(embedded, GREEN)
    green = await embedded.ask(GENERATE, generate(body))
    mm_hash = body["features"]["mm_hashes"]["image"][0]

    await embedded.ask(GENERATE, await named_as(embedded, RED, mm_hash))

    bound = generate(body, payload="mm_metadata", ec_transfer_params=green["ec_transfer_params"])
    assert await tokens(embedded, bound) == green["choices"][0]["token_ids"]


async def test_a_salt_keeps_embeddings_to_those_who_know_it(embedded: Embedded) -> None:
    body = await rendered(embedded, GREEN)
    named = {"ec_items": [{"mm_hash": body["features"]["mm_hashes"]["image"][0]}]}

    def asked(salt: str | None) -> dict:
        more = {} if salt is None else {"cache_salt": salt}
        return generate(body, payload="mm_metadata", ec_transfer_params=named, **more)

    await embedded.ask(CHAT, chat("What?", [GREEN], cache_salt="mine"))
    await embedded.ask(GENERATE, generate(body, cache_salt="ours"))

    for salt in ("mine", "ours"):
        assert len(await tokens(embedded, asked(salt))) == 8
    for salt in ("yours", None):
        error = (await embedded.ask(GENERATE, asked(salt), status=400))["error"]
        assert "not in the encoder cache" in error["message"]


async def test_a_key_cannot_be_spelled_as_a_hash(embedded: Embedded) -> None:
    """Whoever knows how keys are made still cannot ask for one."""
    body = await rendered(embedded, GREEN)
    mm_hash = body["features"]["mm_hashes"]["image"][0]
    await embedded.ask(CHAT, chat("What?", [GREEN], cache_salt="mine"))
    key = entry_key(mm_hash, salt="mine")
    assert embedded.entry(key).exists()

    forged = generate(body, payload="mm_metadata", ec_transfer_params={"x": {}})
    forged["features"]["mm_hashes"] = {"image": [key]}
    error = (await embedded.ask(GENERATE, forged, status=400))["error"]

    assert "not in the encoder cache" in error["message"]


NAN = struct.pack("<f", float("nan"))


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("float32", NAN),
        ("float32", struct.pack("<f", float("inf"))),
        ("bfloat16", b"\x80\x7f"),
        ("float16", b"\x00\xfe"),
        ("float64", struct.pack("<d", float("-inf"))),
        ("bool", b"\x01"),
        ("float8_e4m3fn", b"\x00"),
        ("float8_e5m2", b"\x00"),
        ("complex64", bytes(8)),
        ("complex128", bytes(16)),
    ],
)
async def test_pixels_that_are_no_numbers_are_refused_and_leave_nothing_behind(
    embedded: Embedded, dtype: str, element: bytes
) -> None:
    body = generate(await rendered(embedded, GREEN), payload="kwargs_data")
    (text,) = body["features"]["kwargs_data"]["image"]
    pixels = decode_item(base64.b64decode(text))["pixel_values"].data
    assert isinstance(pixels, Tensor)
    count = pixels.shape[0] * pixels.shape[1]
    odd = changed(text, with_pixels(dtype, element * count))
    body["features"]["kwargs_data"] = {"image": [odd]}

    error = (await embedded.ask(GENERATE, body, status=400))["error"]

    assert error["param"] == "kwargs_data"
    assert "pixel_values" in error["message"]
    assert not list(embedded.ec.glob("*/*/*.safetensors"))


@pytest.mark.parametrize(
    "change",
    [
        with_grid(2**58 + 1, 8, 8),
        with_grid(-1, 4, 6),
        with_grid(0, 4, 6),
        with_grid(1, 3, 8),
        with_grid(1, 4),
        with_grid(1, 4, 6, 1),
        with_grid(1, 4, 6, 1, 4, 6, shape=(2, 3)),
        with_grid(1, 4, 6, shape=(1, 3)),
        with_grid(1, 400, 600),
        lambda fields: fields.pop("image_grid_thw"),
        lambda fields: fields.update(image_grid_thw=Field([1.0, 4.0, 6.0], "batched")),
        lambda fields: fields.update(image_grid_thw=Field([True, 4, 6], "batched")),
        lambda fields: fields.update(image_grid_thw=Field(None, "batched")),
    ],
)
@pytest.mark.parametrize("payload", ["kwargs_data", "mm_metadata"])
async def test_a_grid_that_is_none_of_the_placeholder_is_refused_before_anything_is_encoded(
    embedded: Embedded, change: Callable[[Fields], object], payload: str
) -> None:
    named = {} if payload == "kwargs_data" else {"ec_transfer_params": {"x": {}}}
    body = generate(await rendered(embedded, GREEN), payload=payload, **named)
    (text,) = body["features"][payload]["image"]
    body["features"][payload] = {"image": [changed(text, change)]}

    error = (await embedded.ask(GENERATE, body, status=400))["error"]

    assert error["param"] in ("kwargs_data", "mm_metadata", "mm_placeholders")
    assert not list(embedded.ec.glob("*/*/*.safetensors"))


async def test_more_patches_than_a_placeholder_holds_are_not_encoded(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.models.engine import inprocess

    body = generate(await rendered(embedded, GREEN), payload="kwargs_data")
    larger = generate(await rendered(embedded, picture(3, 512, 512)), payload="kwargs_data")
    body["features"]["kwargs_data"] = larger["features"]["kwargs_data"]
    monkeypatch.setattr(inprocess, "encode_item", pytest.fail)

    error = (await embedded.ask(GENERATE, body, status=400))["error"]

    assert error["param"] == "mm_placeholders"
    assert "has room for" in error["message"]


async def test_metadata_that_cannot_be_read_are_ignored_beside_tensors(embedded: Embedded) -> None:
    body = generate(await rendered(embedded, GREEN))
    expected = await tokens(embedded, body)

    for garbage in ("AAAA", "", "!", "wQ=="):
        body["features"]["mm_metadata"] = {"image": [garbage]}
        assert await tokens(embedded, body) == expected


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        lambda path: (path.mkdir(), (path / "inside").write_bytes(b"x")),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" * 64),
        lambda path: path.write_bytes((10**15).to_bytes(8, "little") + b"{}"),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: os.mkfifo(path),
        lambda path: (path.parent.rmdir(), path.parent.write_bytes(b"a file")),
    ],
)
async def test_whatever_lies_where_an_embedding_should_be_it_is_made_again(
    embedded: Embedded, make: Callable[[Path], object]
) -> None:
    body = chat("What?", [GREEN])
    answer = await embedded.say(body)
    path = embedded.entry(await hash_of(embedded, GREEN))

    in_place_of(path, make)

    assert await embedded.say(body) == answer
    assert path.is_file()
    assert not path.is_symlink()


async def test_an_embedding_of_no_numbers_is_made_again(embedded: Embedded) -> None:
    body = chat("What?", [GREEN])
    answer = await embedded.say(body)
    path = embedded.entry(await hash_of(embedded, GREEN))
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    data = NAN * ((len(whole) - 8 - length) // 4)
    head = whole[8 : 8 + length]
    old = digest_of(whole[8 + length :]).encode()
    path.write_bytes(whole[:8] + head.replace(old, digest_of(data).encode()) + data)

    assert await embedded.say(body) == answer
    assert path.read_bytes() == whole
