"""Image files of every kind become the pixels vLLM sees, or a refusal that names the reason."""

import base64
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from schemas.errors import ApiError
from tests.models_media.pictures import encoded, noise, png
from workers.models.images import ImageOptions, as_rgb, decode, image_options, read_header
from workers.models.limits import MediaLimits

OPTIONS = ImageOptions()
LIMITS = MediaLimits()
# A PNG of 1 x 2 pixels, the second of them unreadable, with EXIF orientation 3.
BROKEN_AND_UPSIDE_DOWN = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAACCAIAAAAW4yFwAAAAGmVYSWZNTQAqAAAACAABARIAAwAAAAEAAwAAAAAAAIRf"
    "ZM4AAAAQSURBVHicYzjL/wDEPcMMAAg4AdxdQW6aAAAAAElFTkSuQmCC"
)


def pixels(data: bytes, options: ImageOptions = OPTIONS) -> np.ndarray[Any, Any]:
    return np.asarray(decode(data, options, LIMITS).image)


def refusal(data: bytes, limits: MediaLimits = LIMITS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(data, OPTIONS, limits)
    assert caught.value.status == 400
    return caught.value


class TestModes:
    def test_cmyk_red_is_red(self) -> None:
        data = encoded(Image.new("CMYK", (32, 32), (0, 255, 255, 0)), "JPEG")

        red, green, blue = pixels(data)[16, 16]
        assert red > 200
        assert max(green, blue) < 60

    def test_transparency_lies_on_white(self) -> None:
        clear = encoded(Image.new("RGBA", (4, 4), (10, 20, 30, 0)))
        half = encoded(Image.new("LA", (4, 4), (0, 128)))

        assert (pixels(clear) == 255).all()
        assert (pixels(half) == 127).all()

    def test_the_background_can_be_chosen(self) -> None:
        clear = encoded(Image.new("RGBA", (4, 4), (10, 20, 30, 0)))
        options = image_options({"rgba_background_color": [1, 2, 3]})

        assert (pixels(clear, options) == (1, 2, 3)).all()

    def test_a_transparent_palette_entry_lies_on_white_too(self) -> None:
        image = noise().quantize(8)
        data = encoded(image, transparency=3)

        indices = np.asarray(image)
        assert (pixels(data)[indices == 3] == 255).all()

    @pytest.mark.parametrize(
        ("mode", "format"),
        [
            ("1", "PNG"), ("L", "JPEG"), ("P", "GIF"), ("I;16", "PNG"), ("F", "TIFF"),
            ("CMYK", "TIFF"), ("YCbCr", "JPEG"), ("LAB", "TIFF"), ("RGBA", "WEBP"), ("RGB", "BMP"),
        ],
    )  # fmt: skip
    def test_all_end_as_rgb(self, mode: str, format: str) -> None:
        if mode == "I;16":
            image = Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16))
        else:
            image = noise().convert(mode) if mode != "LAB" else Image.new("LAB", (8, 8))

        assert pixels(encoded(image, format)).shape[2] == 3

    def test_only_conversions_are_told_apart(self) -> None:
        rgb, rgba = png(), encoded(noise(mode="RGBA"))

        assert not read_header(rgb, OPTIONS, LIMITS).is_converted
        assert read_header(rgba, OPTIONS, LIMITS).is_converted
        assert not read_header(rgba, image_options({"image_mode": None}), LIMITS).is_converted


def test_a_picture_kept_in_its_mode_is_flattened_for_the_processor() -> None:
    clear = encoded(Image.new("RGBA", (4, 4), (10, 20, 30, 0)))

    kept = decode(clear, image_options({"image_mode": None}), LIMITS)

    assert kept.image.mode == "RGBA"
    assert (np.asarray(as_rgb(kept)) == 255).all()


def test_a_broken_picture_is_turned_for_the_processor_only() -> None:
    """As vLLM: its own loader meets the error, transformers' behind it no longer does."""
    data = base64.b64decode(BROKEN_AND_UPSIDE_DOWN)

    picture = decode(data, OPTIONS, LIMITS)

    assert not picture.is_upright
    shown, loaded = np.asarray(as_rgb(picture)), np.asarray(picture.image)
    assert (shown == loaded[::-1, ::-1]).all()
    assert not (shown == loaded).all()


class TestHeader:
    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_tells_the_upright_size_and_decoding_agrees(
        self, format: str, orientation: int
    ) -> None:
        exif = Image.Exif()
        exif[0x112] = orientation
        data = encoded(noise(40, 20), format, exif=exif)

        header = read_header(data, OPTIONS, LIMITS)

        assert header.is_complete
        assert header == decode(data, OPTIONS, LIMITS).header
        assert (header.width > header.height) is (orientation < 5)

    def test_a_rotated_picture_is_the_one_rotated_by_hand(self) -> None:
        exif = Image.Exif()
        exif[0x112] = 6
        image = noise(40, 20)

        turned = image.transpose(Image.Transpose.ROTATE_270)
        assert (pixels(encoded(image, exif=exif)) == pixels(encoded(turned))).all()

    @pytest.mark.parametrize("late", [b"eXIf", b"tRNS"])
    def test_is_not_trusted_where_a_png_says_more_behind_its_pixels(self, late: bytes) -> None:
        exif = Image.Exif()
        exif[0x112] = 6
        content = exif.tobytes()[6:] if late == b"eXIf" else struct.pack(">HHH", 1, 2, 3)
        data = _with_last_chunk(png(40, 20), late, content)

        assert not read_header(data, OPTIONS, LIMITS).is_complete
        assert decode(data, OPTIONS, LIMITS).header.is_converted is (late == b"tRNS")

    def test_is_not_trusted_for_formats_that_load_otherwise(self) -> None:
        assert not read_header(encoded(noise(), "GIF"), OPTIONS, LIMITS).is_complete


def _with_last_chunk(data: bytes, kind: bytes, content: bytes) -> bytes:
    end = data.rindex(b"IEND") - 4
    body = kind + content
    chunk = struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))
    return data[:end] + chunk + data[end:]


def test_an_animation_is_its_first_frame() -> None:
    first, second = noise(seed=1), noise(seed=2)
    data = encoded(first, "WEBP", save_all=True, append_images=[second], lossless=True)

    assert (pixels(data) == np.asarray(first)).all()


def test_the_content_counts_and_not_the_label() -> None:
    assert pixels(encoded(noise(), "BMP")).shape == (48, 64, 3)


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "named"),
        [
            (b"", "empty file"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
            (b"%PDF-1.7 ...", "PDF"),
            (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "HEIC"),
            (b"\x00\x00\x00\x18ftypisom\x00\x00\x00\x00", "MP4"),
            (b"%!PS-Adobe-3.0 EPSF-3.0", "PostScript"),
            (b"<!DOCTYPE html><html></html>", "HTML"),
            (b"hello world, this is text", "68 65 6c 6c 6f"),
        ],
    )
    def test_name_what_was_sent_instead(self, data: bytes, named: str) -> None:
        assert named in refusal(data).message

    def test_a_truncated_file_is_refused(self) -> None:
        assert "truncated" in refusal(png(200, 200)[:-200]).message

    def test_a_broken_chunk_is_refused(self) -> None:
        data = bytearray(png(200, 200))
        data[data.index(b"IHDR") + 4] ^= 0x40

        assert refusal(bytes(data)).message.startswith("Failed to load image")

    @pytest.mark.parametrize("size", [(40_000, 40_000), (1, 200_000_000)])
    def test_a_bomb_is_refused_by_its_header_alone(self, size: tuple[int, int]) -> None:
        header = struct.pack(">IIBBBBB", *size, 1, 0, 0, 0, 0)
        data = _png_of(header, zlib.compress(b"\x00" * 100_000))
        tracemalloc.start()
        try:
            error = refusal(data)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        assert "exceed" in error.message

    def test_the_pixel_limit_is_the_operators(self) -> None:
        error = refusal(png(64, 48), MediaLimits(max_image_pixels=3071))

        assert "64x48 (3072 pixels)" in error.message
        assert "3071" in error.message

    @pytest.mark.parametrize("colour", [[0, 0], [0, 0, 256], "red", [0, 0, 1.5]])
    def test_a_background_that_is_no_colour_is_refused(self, colour: Any) -> None:
        with pytest.raises(ApiError, match="3 integers"):
            image_options({"rgba_background_color": colour})

    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(ApiError, match="Failed to load image"):
            decode(png(), image_options({"image_mode": "XYZ"}), LIMITS)


def _png_of(header: bytes, body: bytes) -> bytes:
    data = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", body), (b"IEND", b"")):
        chunk = kind + content
        data += struct.pack(">I", len(content)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data
