"""Attacks by tensors: numbers that are none, sizes that are not there, other people's names."""

import base64
import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from schemas.mm_item import Field, Fields, Tensor, decode_item, encode_item
from tests.hostile.attack import Answer, Attack, Send, Target, post

CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"
_REFUSED, _ANSWERED = frozenset({400}), frozenset({200})
_EMBEDS = ("--enable-mm-embeds",)
_WIDTH = 192
"""Of an embedding of the model under attack."""

Change = Callable[[Fields], object]


@cache
def _picture(colour: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (128, 128), colour).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _chat(*parts: Mapping[str, Any], **options: object) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "What is it?"}]
    message = {"role": "user", "content": content}
    return {"messages": [message], "max_tokens": 8, "temperature": 0, **options}


def _image(colour: str, **more: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": _picture(colour)}, **more}


async def _ask(target: Target, path: str, body: object) -> dict[str, Any]:
    answer = (await target.client.post(target.url + path, json=body)).json()
    assert isinstance(answer, dict)
    return answer


async def _features(target: Target, colour: str) -> tuple[list[int], dict[str, Any]]:
    rendered = await _ask(target, CHAT + "/render", _chat(_image(colour)))
    return rendered["token_ids"], rendered["features"]


def _generated(
    change: Change | None = None, *, payload: str = "kwargs_data", **options: object
) -> Send:
    """Render a picture, change its item, and let it be answered."""

    async def send(target: Target) -> Answer:
        token_ids, features = await _features(target, "red")
        kept = {name: features[name] for name in ("mm_hashes", "mm_placeholders", payload)}
        if change is not None:
            (text,) = features[payload]["image"]
            kept[payload] = {"image": [_changed(text, change)]}
        body = {"token_ids": token_ids, "features": kept, "sampling_params": {"max_tokens": 1}}
        return await post(GENERATE, body | options)(target)

    return send


def _changed(text: str, change: Change) -> str:
    fields = dict(decode_item(base64.b64decode(text)))
    change(fields)
    return base64.b64encode(encode_item(fields)).decode()


def _pixels(dtype: str, element: bytes, rows: int | None = None) -> Change:
    def change(fields: Fields) -> None:
        old = fields["pixel_values"]
        assert isinstance(old.data, Tensor)
        shape = (rows or old.data.shape[0], *old.data.shape[1:])
        tensor = Tensor(dtype, shape, element * (shape[0] * shape[1]))
        fields["pixel_values"] = Field(tensor, old.factory, old.kwargs)

    return change


def _grid(*values: int) -> Change:
    def change(fields: Fields) -> None:
        tensor = Tensor("int64", (len(values),), struct.pack(f"<{len(values)}q", *values))
        fields["image_grid_thw"] = Field(tensor, "batched", {"keep_on_cpu": True})

    return change


def _both(*changes: Change) -> Change:
    return lambda fields: [change(fields) for change in changes]


def _torch_file(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _embeds(make: Callable[[], bytes], grid: object = (1, 4, 4)) -> Send:
    def body() -> bytes:
        data = base64.b64encode(make()).decode()
        given = {"image_embeds": data, "image_grid_thw": grid}
        asked = _chat({"type": "image_embeds", "image_embeds": given})
        return json.dumps(asked).encode()  # also for integers beyond 64 bit

    return post(CHAT, body)


def _filled(value: float, dtype: torch.dtype = torch.float32) -> Callable[[], bytes]:
    return lambda: _torch_file(torch.full((4, _WIDTH), value, dtype=torch.float64).to(dtype))


def _archive(compression: int, *entries: tuple[str, int]) -> Callable[[], bytes]:
    def make() -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", compression) as archive:
            for name, size in entries:
                archive.writestr(name, bytes(size))
        return file.getvalue()

    return make


def _numpy_head(shape: str, held: int) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(held)


async def _red_under_the_hash_of_green(target: Target) -> Answer:
    """Right is the answer about green that is given once it has been told apart by a salt."""
    token_ids, red = await _features(target, "red")
    _, green = await _features(target, "green")
    forged = {**red, "mm_hashes": green["mm_hashes"]}
    body = {"token_ids": token_ids, "features": forged, "sampling_params": {"max_tokens": 1}}
    await _ask(target, GENERATE, body)
    return await _same(target, _chat(_image("green")), _chat(_image("green"), cache_salt="a"))


async def _a_uuid_again(target: Target) -> Answer:
    await _ask(target, CHAT, _chat(_image("red", uuid="clip-1")))
    return await _same(
        target, _chat(_image("blue", uuid="clip-1")), _chat(_image("blue"), cache_salt="b")
    )


async def _same(target: Target, asked: object, wanted: object) -> Answer:
    """200 where both are answered alike."""
    answers = [await _ask(target, CHAT, body) for body in (asked, wanted)]
    contents = [answer["choices"][0]["message"]["content"] for answer in answers]
    return Answer(200 if contents[0] == contents[1] else 500, repr(contents).encode())


_FOREIGN_UUID = post(CHAT, _chat({"type": "image_url", "image_url": None, "uuid": "never sent"}))
_NAN = struct.pack("<f", float("nan"))

ATTACKS = [
    Attack("red tensors under green's hash", _red_under_the_hash_of_green, _ANSWERED),
    Attack("a uuid that comes again with other bytes", _a_uuid_again, _ANSWERED),
    Attack("a uuid that nobody sent", _FOREIGN_UUID, _REFUSED),
    Attack("pixels that are NaN", _generated(_pixels("float32", _NAN)), _REFUSED),
    Attack("pixels that are bfloat16 Inf", _generated(_pixels("bfloat16", b"\x80\x7f")), _REFUSED),
    Attack("pixels that are bool", _generated(_pixels("bool", b"\x01")), _REFUSED),
    Attack("pixels that are complex128", _generated(_pixels("complex128", bytes(16))), _REFUSED),
    Attack("pixels that are float8", _generated(_pixels("float8_e4m3fn", b"\x01")), _REFUSED),
    Attack(
        "pixels of the largest numbers there are",
        _generated(_pixels("float32", struct.pack("<f", 3.4e38))),
        _REFUSED,
    ),
    Attack(
        "20 000 patches for a small placeholder",
        _generated(_both(_pixels("uint8", b"\x80", 20_000), _grid(1, 100, 200))),
        _REFUSED,
    ),
    Attack("a grid that wraps in 64 bit", _generated(_grid(2**58 + 1, 8, 8)), _REFUSED),
    Attack("a negative grid", _generated(_grid(-1, 8, 8)), _REFUSED),
    Attack("a grid that does not divide", _generated(_grid(1, 1, 64)), _REFUSED),
    Attack(
        "a grid that wraps, as metadata alone",
        _generated(
            _grid(2**58 + 1, 8, 8), payload="mm_metadata", ec_transfer_params={"anything": 1}
        ),
        _REFUSED,
    ),
    Attack(
        "descriptors of odd types",
        _generated(
            payload="mm_metadata",
            ec_transfer_params={"ec_items": [{"mm_hash": "x", "checksum": []}, 5, None]},
        ),
        frozenset({200, 400}),
    ),
    Attack("embeddings that are NaN", _embeds(_filled(float("nan"))), _REFUSED, _EMBEDS),
    Attack("embeddings that are Inf", _embeds(_filled(float("inf"))), _REFUSED, _EMBEDS),
    Attack(
        "embeddings that are infinite in the model's dtype",
        _embeds(_filled(1e300, torch.float64)),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "embeddings that are complex", _embeds(_filled(1.0, torch.complex64)), _REFUSED, _EMBEDS
    ),
    Attack(
        "embeddings that are float8",
        _embeds(_filled(1.0, torch.float8_e5m2)),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "embeddings with strides of zero",
        _embeds(lambda: _torch_file(torch.zeros(1).expand(2**19 - 1, 1024))),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "embeddings on no device",
        _embeds(lambda: _torch_file(torch.empty(2**19 - 1, 1024, device="meta"))),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "sparse embeddings",
        _embeds(lambda: _torch_file(torch.sparse_coo_tensor([[0], [0]], [1.0], (2**19 - 1, 1024)))),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "an archive that unpacks to 1 GB",
        _embeds(_archive(zipfile.ZIP_DEFLATED, ("archive/data/0", 10**9))),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "an archive of 100 000 entries",
        _embeds(_archive(zipfile.ZIP_STORED, *((f"a/{i}", 0) for i in range(100_000)))),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "a numpy file that declares 2 GB",
        _embeds(lambda: _numpy_head("(524287, 1024)", 64)),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "a numpy file of negative sizes",
        _embeds(lambda: _numpy_head("(-4, -192)", 4 * 192 * 4)),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "an embedding's grid beyond 64 bit",
        _embeds(lambda: _torch_file(torch.ones(4, _WIDTH)), [2**70, 2, 2]),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "an embedding's grid of 1 000 000 numbers",
        _embeds(lambda: _torch_file(torch.ones(4, _WIDTH)), np.ones(10**6, int).tolist()),
        _REFUSED,
        _EMBEDS,
    ),
    Attack(
        "one choice of 1 MB",
        post(CHAT, lambda: _chat(structured_outputs={"choice": ["ab " * 350_000]})),
        _REFUSED,
    ),
    Attack(
        "one choice of 60 kB",
        post(CHAT, lambda: _chat(structured_outputs={"choice": ["ab " * 20_000]})),
        _ANSWERED,
    ),
    Attack(
        "1 000 choices that begin alike",
        post(
            CHAT,
            lambda: _chat(structured_outputs={"choice": [f"{'a ' * 20}{i}" for i in range(1000)]}),
        ),
        _ANSWERED,
    ),
]
