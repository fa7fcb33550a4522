"""Makes pictures and videos for tests. Equal arguments give equal files."""

import base64
import io
from typing import Any

import av
import numpy as np
from PIL import Image


def noise(width: int = 64, height: int = 48, *, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A smooth random picture."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (max(height // 8, 1), max(width // 8, 1), 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png(width: int = 64, height: int = 48, **options: Any) -> bytes:
    return encoded(noise(width, height, **options))


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def video(count: int = 8, *, rate: int = 4, width: int = 64, height: int = 48) -> bytes:
    """An MP4 of moving noise."""
    file = io.BytesIO()
    source = np.asarray(noise(width + count, height))
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(count):
            picture = np.ascontiguousarray(source[:, number : number + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
