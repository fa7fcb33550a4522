"""Recipes of encoded pictures, whole and broken, and the data URLs that carry them.

Knows no request.
"""

import base64
import io
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from PIL import Image

MODES: Mapping[str, tuple[str, ...]] = {
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "JPEG": ("RGB", "L", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L", "1", "RGB", "RGBA"),
    "BMP": ("RGB", "L", "P", "1", "RGBA"),
    "AVIF": ("RGB", "RGBA"),
    "ICO": ("RGBA", "RGB", "L"),
    "JPEG2000": ("RGB", "RGBA", "L", "LA"),
    "PCX": ("RGB", "L", "P", "1"),
    "PPM": ("RGB", "L", "1", "I;16"),
    "TGA": ("RGB", "RGBA", "L", "LA", "P", "1"),
    "TIFF": ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"),
}
_ANIMATED = ("GIF", "WEBP", "TIFF", "PNG")
_ORIENTATION = 0x0112


class DataUrl(str):
    """A picture or video as a request carries it, which prints as its recipe."""

    recipe: Any = None
    modality = "image"

    def __repr__(self) -> str:
        return f"<{self.recipe}: {len(self)} characters>"


@dataclass(frozen=True, slots=True)
class Recipe:
    format: str
    mode: str
    size: tuple[int, int]
    seed: int
    """None of the pictures is random: the seed decides every pixel."""
    grain: int = 1
    """Pixels per edge of the squares of noise; 0: one colour."""
    orientation: int = 1
    frames: int = 1
    options: tuple[tuple[str, Any], ...] = ()

    def file(self) -> bytes:
        first, *others = [self._frame(self.seed + number) for number in range(self.frames)]
        options = dict(self.options)
        if self.orientation != 1:
            exif = Image.Exif()
            exif[_ORIENTATION] = self.orientation
            options["exif"] = exif
        if others:
            options |= {"save_all": True, "append_images": others}
        out = io.BytesIO()
        first.save(out, self.format, **options)
        return out.getvalue()

    def _frame(self, seed: int) -> Image.Image:
        noise = self._noise(random.Random(seed))
        if self.mode == "P":
            return noise.quantize(2 + seed % 255)
        if self.mode == "I;16":
            return noise.convert("I").point(lambda value: value * 251).convert("I;16")
        if self.mode == "LAB":
            return Image.frombytes("LAB", noise.size, noise.tobytes())
        return noise.convert(self.mode)

    def _noise(self, dice: random.Random) -> Image.Image:
        mode = self.mode if self.mode in ("RGBA", "LA", "CMYK") else "RGB"
        if not self.grain:
            return Image.new(mode, self.size, tuple(dice.randbytes(len(mode))))
        coarse = [-(-edge // self.grain) for edge in self.size]
        pixels = dice.randbytes(coarse[0] * coarse[1] * len(mode))
        squares = Image.frombytes(mode, (coarse[0], coarse[1]), pixels)
        return squares.resize(self.size, Image.Resampling.NEAREST)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    form = draw(st.sampled_from(list(MODES)))
    mode = draw(st.sampled_from(MODES[form]))
    edges = st.one_of(st.integers(1, 40), st.integers(1, 300), st.integers(1, 700))
    return Recipe(
        form,
        mode,
        (draw(edges), draw(edges)),
        draw(st.integers(0, 2**16)),
        draw(st.sampled_from((1, 0, 3, 17, 64))),
        draw(st.one_of(st.just(1), st.integers(1, 8) if form == "TIFF" else st.integers(0, 9))),
        draw(st.sampled_from((1, 1, 1, 2, 3))) if form in _ANIMATED else 1,
        tuple(sorted(draw(_options(form, mode)).items())),
    )


def _options(form: str, mode: str) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, st.SearchStrategy[Any]] = {}
    match form:
        case "AVIF":
            return st.fixed_dictionaries({"speed": st.just(10), "quality": st.integers(5, 100)})
        case "JPEG":
            optional = {
                "quality": st.integers(5, 100),
                "progressive": st.booleans(),
                "subsampling": st.sampled_from((0, 1, 2)),
            }
        case "WEBP":
            optional = {"lossless": st.booleans(), "quality": st.integers(5, 100)}
        case "TIFF" if mode in ("RGB", "L"):
            codes = ("raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg")
            optional = {"compression": st.sampled_from(codes)}
        case "PNG" if mode == "P":
            alphas = st.binary(min_size=1, max_size=9)
            optional = {"transparency": st.one_of(st.integers(0, 255), alphas)}
        case "PNG" | "GIF" if mode in ("P", "L", "1"):
            optional = {"transparency": st.integers(0, 255)}
        case "PNG" if mode == "RGB":
            optional = {"transparency": st.tuples(*[st.integers(0, 255)] * 3)}
    return st.fixed_dictionaries({}, optional=optional)


@st.composite
def data_urls(draw: st.DrawFn) -> DataUrl:
    recipe = draw(recipes())
    try:
        data, damage = recipe.file(), ""
    except (OSError, RuntimeError, ValueError):  # Pillow does not write every combination
        reject()
    if draw(st.integers(0, 19)) == 7:
        data, damage = draw(_damaged(data))
    text = base64.b64encode(data).decode()
    form = "{type};base64,{text}"
    if draw(st.integers(0, 19)) == 7:
        form = draw(st.sampled_from(_ODD_FORMS))
    kind = f"image/{recipe.format.lower()}"
    folded = "\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    url = DataUrl("data:" + form.format(type=kind, text=text, folded=folded, cut=text[:-1]))
    url.recipe = f"{recipe}{damage} as data:{form}"
    return url


_ODD_FORMS = (
    "image/nonsense;base64,{text}",
    ";base64,{text}",
    "{type};charset=utf-8;base64,{text}",
    "{type};BASE64,{text}",
    "{type};base64,{text}#fragment",
    "{type};base64,{folded}",
    "{type};base64, {text} ",
    "{type};base64,{cut}",
    "{type};base64,{text}====",
    "{type};base64,-_{text}",
    "{type};base64,",
    "{type};base64",
    "{type},{text}",
    "text/plain;base64,aGVsbG8=",
    "video/mp4;base64,{text}",
)


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> tuple[bytes, str]:
    at = draw(st.integers(0, len(data)))
    if draw(st.booleans()):
        return data[:at], f" cut at {at}"
    return data[:at] + b"\xff\x00" + data[at + 2 :], f" overwritten at {at}"
