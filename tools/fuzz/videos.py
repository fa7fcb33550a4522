"""Recipes of encoded videos, and the data URLs that carry them. Knows no request.

Whole ones only: what is concealed of damage depends on the release of FFmpeg.
"""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av
from hypothesis import strategies as st
from PIL import Image, ImageChops

from fuzz.pictures import DataUrl, Recipe

_CODECS = (("mp4", "mpeg4"), ("mp4", "libx264"), ("avi", "mpeg4"), ("webm", "libvpx-vp9"))


@dataclass(frozen=True, slots=True)
class VideoRecipe:
    """A picture that moves to the side."""

    container: str
    codec: str
    count: int
    rate: int
    picture: Recipe

    def file(self) -> bytes:
        out = io.BytesIO()
        with av.open(out, "w", format=self.container) as container:
            stream: Any = container.add_stream(self.codec, rate=self.rate)
            stream.width, stream.height = self.picture.size
            stream.pix_fmt = "yuv420p"
            for frame in self._frames():
                container.mux(stream.encode(av.VideoFrame.from_image(frame)))
            container.mux(stream.encode())
        return out.getvalue()

    def _frames(self) -> Iterator[Image.Image]:
        first = Image.open(io.BytesIO(self.picture.file())).convert("RGB")
        return (ImageChops.offset(first, 3 * number, 0) for number in range(self.count))


@st.composite
def video_urls(draw: st.DrawFn) -> DataUrl:
    edges = st.integers(8, 100).map(lambda half: 2 * half)  # what every codec takes
    seed, grain = draw(st.integers(0, 999)), draw(st.sampled_from((8, 17, 64)))
    picture = Recipe("BMP", "RGB", (draw(edges), draw(edges)), seed, grain)
    recipe = VideoRecipe(
        *draw(st.sampled_from(_CODECS)),
        draw(st.integers(1, 16)),
        draw(st.sampled_from((1, 4, 10, 25, 30))),
        picture,
    )
    url = DataUrl("data:video/mp4;base64," + base64.b64encode(recipe.file()).decode())
    url.recipe, url.modality = recipe, "video"
    return url
