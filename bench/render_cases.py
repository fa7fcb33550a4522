"""The requests of the render benchmark: bodies as byte chunks, cheap to make unlike one another.

A new picture is the same JPEG with another comment: bytes and hash are new, the work is the same.
Knows no server.
"""

import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

PATH = "/v1/chat/completions/render"

# Start of image, the comment's marker and length: six bytes, eight characters of base64.
_COMMENT_BYTES = 24
_HEAD = b"\xff\xd8\xff\xfe" + (_COMMENT_BYTES + 2).to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request."""

    name: str
    target: float
    """What the ratio ours / peer is meant to reach."""
    body: Callable[[int], Sequence[bytes]]
    """The n-th body in chunks; all have one length."""
    pictures: tuple[tuple[int, int], ...] = ()
    """Width and height of those that have to be processed."""


@cache
def jpeg(width: int, height: int) -> bytes:
    """Soft shapes with some grain: compresses like a photograph."""
    rng = np.random.default_rng(width * height)
    coarse = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 4, (height, width, 3))
    pixels = np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=85)
    return file.getvalue()


def _picture(width: int, height: int) -> Callable[[int], list[bytes]]:
    head = b"data:image/jpeg;base64," + base64.b64encode(_HEAD)
    rest = base64.b64encode(jpeg(width, height)[2:])
    return lambda n: [head, base64.b64encode(f"{n:0{_COMMENT_BYTES}}".encode()), rest]


def _with_pictures(
    sizes: Sequence[tuple[int, int]], **options: Any
) -> Callable[[int], list[bytes]]:
    """A question about pictures that are new in every body."""
    pictures = [_picture(*size) for size in sizes]
    parts = [{"type": "image_url", "image_url": {"url": "HOLE"}} for _ in sizes]
    content = [*parts, {"type": "text", "text": "What do these pictures have in common?"}]
    text = json.dumps({"messages": [{"role": "user", "content": content}], **options})
    pieces = [piece.encode() for piece in text.split("HOLE")]

    def body(n: int) -> list[bytes]:
        chunks = [pieces[0]]
        for i, picture in enumerate(pictures):
            chunks += [*picture(n * len(pictures) + i), pieces[i + 1]]
        return chunks

    return body


def _same(make: Callable[[int], list[bytes]]) -> Callable[[int], list[bytes]]:
    chunks = make(10**9)
    return lambda _: chunks


_SENTENCE = (
    "The keeper of the lighthouse writes down wind, tide and passing ships before the sun rises. "
)


def _text(*, is_known: bool) -> Callable[[int], list[bytes]]:
    """Some 400 tokens in four messages; all of them new, or only the last."""
    turns = [
        ("system", "You answer in one short sentence."),
        ("user", _SENTENCE * 9),
        ("assistant", _SENTENCE * 3),
        ("user", _SENTENCE * 8 + "Report HOLE: what is written down, and when?"),
    ]
    messages = [
        {"role": role, "content": text if is_known or "HOLE" in text else f"HOLE {text}"}
        for role, text in turns
    ]
    pieces = json.dumps({"messages": messages}).encode().split(b"HOLE")

    def body(n: int) -> list[bytes]:
        number = f"{n:012}".encode()
        return [chunk for piece in pieces for chunk in (piece, number)][:-1]

    return body


SQUARE, LARGE, HD = (512, 512), (1024, 1024), (1280, 720)
CASES = (
    Case("512 x 512 JPEG", 4, _with_pictures([SQUARE]), (SQUARE,)),
    Case("1024 x 1024 JPEG", 4, _with_pictures([LARGE]), (LARGE,)),
    Case("four 1280 x 720 JPEG", 4, _with_pictures([HD] * 4), (HD,) * 4),
    Case("400-token chat, all new", 2, _text(is_known=False)),
    Case("400-token chat, last turn new", 2, _text(is_known=True)),
    Case(
        "same 512 x 512 again, return_mm_kwargs false",
        20,
        _same(_with_pictures([SQUARE], return_mm_kwargs=False)),
    ),
    Case("same 512 x 512 again, tensors", 4, _same(_with_pictures([SQUARE]))),
)
