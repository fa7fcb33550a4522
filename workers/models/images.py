"""Image files become pictures as vLLM decodes them: by content, upright, in the mode asked for.

Knows no model: sizes, patches and normalisation are the families' business.
"""

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from schemas.errors import ApiError
from schemas.refusals import bad_request
from workers.models.limits import MediaLimits

# Formats that Pillow decodes by itself; the others start programs or need handlers (EPS, WMF …).
# They are tried in this order: as Pillow, what people send comes first.
FORMATS = (
    "BMP", "GIF", "JPEG", "PPM", "PNG", "WEBP",
    "AVIF", "BLP", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FTEX", "GBR", "ICNS", "ICO", "IM",
    "IMT", "IPTC", "JPEG2000", "MCIDAS", "MSP", "PCD", "PCX", "PIXAR", "PSD", "QOI", "SGI",
    "SPIDER", "SUN", "TGA", "TIFF", "XBM", "XPM", "XVTHUMB",
)  # fmt: skip

# Formats whose header tells size, mode and orientation of what loading will give.
_TELLING_FORMATS = frozenset({"JPEG", "MPO", "PNG", "WEBP", "BMP"})
_SCANNED_FORMATS = frozenset({"JPEG", "MPO"})
_MAX_SCAN_PIXELS = 2**31
"""Pixels times scans of a JPEG: several seconds of decoding."""
_TURNED_BY_90 = frozenset({5, 6, 7, 8})
_ALPHA_MODES = frozenset({"RGBA", "LA", "PA"})

# What people send instead of a picture, by its first bytes.
_FOREIGN_TYPES = (
    (b"%PDF", "PDF document"),
    (b"%!PS", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "EPS file"),
    (b"\xd7\xcd\xc6\x9a", "Windows metafile"),
    (b"\x1a\x45\xdf\xa3", "Matroska or WebM video"),
    (b"OggS", "Ogg file"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip file"),
    (b"\x89HDF", "HDF5 file"),
)
_BRANDS = {
    b"heic": "HEIC image", b"heix": "HEIC image", b"hevc": "HEIC image", b"mif1": "HEIF image",
    b"msf1": "HEIF image", b"avif": "AVIF image", b"avis": "AVIF image",
}  # fmt: skip

# Our own limit is checked in the header; Pillow's stays for pictures inside containers (ICO, ICNS).
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# What Pillow thinks of odd files is nothing for our logs.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
# Otherwise loaded at the first odd file, by several threads at once and without a lock.
Image.init()


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """`media_io_kwargs.image`."""

    mode: str | None = "RGB"
    """Target mode; None keeps the file's own."""
    background: tuple[int, int, int] = (255, 255, 255)
    """What shows through where the picture is transparent."""

    @property
    def io_config(self) -> dict[str, Any]:
        """How the hash names a conversion by these options."""
        return {"image_mode": self.mode, "rgba_background_color": self.background}


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a picture before its pixels are."""

    width: int
    height: int
    is_converted: bool
    """Whether decoding changes the mode, which enters the hash."""
    is_complete: bool = True
    """False: only decoding tells the upright size and the conversion for sure."""

    @property
    def decoded_bytes(self) -> int:
        return self.width * self.height * 4


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded image, upright and converted."""

    image: Image.Image | None
    """None: it cannot be seen, as `unseen` says."""
    header: Header
    mode: str
    """Once converted."""
    is_upright: bool = True
    """False: it was too broken to be turned as EXIF says."""
    is_shown: bool = False
    """Whether the image is what a processor sees, in RGB or RGBX, already."""
    unseen: ApiError | None = None


def image_options(kwargs: Mapping[str, Any]) -> ImageOptions:
    """Raise ApiError for values vLLM refuses; unknown keys are ignored."""
    background = kwargs.get("rgba_background_color", (255, 255, 255))
    if not _is_colour(background):
        raise bad_request(
            "rgba_background_color must be a list or tuple of 3 integers in the range [0, 255]."
        )
    mode = kwargs.get("image_mode", "RGB")
    if mode is not None and not isinstance(mode, str):
        raise bad_request(f"image_mode must be a Pillow mode such as RGB, got {mode!r}.")
    return ImageOptions(mode, (background[0], background[1], background[2]))


def _is_colour(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 3
        and all(isinstance(channel, int) and 0 <= channel <= 255 for channel in value)
    )


def read_header(data: bytes, options: ImageOptions, limits: MediaLimits) -> Header:
    """Size and conversion without decoding. Raise ApiError as `decode`."""
    image = _open(data, limits)
    width, height = image.size
    if image.format not in _TELLING_FORMATS or _has_late_chunks(image, data):
        return Header(width, height, is_converted=False, is_complete=False)
    if _orientation(image) in _TURNED_BY_90:
        width, height = height, width
    return Header(width, height, needs_conversion(image, options))


def decode(data: bytes, options: ImageOptions, limits: MediaLimits) -> Picture:
    """Raise ApiError where the file is no picture, is broken, or has more pixels than allowed."""
    image, is_upright = loaded(data, limits)
    converted = convert(image, options)
    header = Header(*converted.size, is_converted=converted is not image)
    return Picture(converted, header, converted.mode, is_upright)


def loaded(data: bytes, limits: MediaLimits) -> tuple[Image.Image, bool]:
    """In the file's own mode, and whether it is turned as it should be. ApiError as `decode`."""
    image = _open(data, limits)
    try:
        image, is_upright = _upright(image)
        image.load()
    except _BROKEN as error:
        raise _broken(error) from error
    return image, is_upright


def convert(image: Image.Image, options: ImageOptions) -> Image.Image:
    """In the mode that is asked for; to RGB, each pixel by itself. ApiError as `decode`."""
    try:
        return _convert(image, options)
    except _BROKEN as error:
        raise _broken(error) from error


# Pillow raises SyntaxError for broken PNG chunks, the rest from within its parsers of odd formats.
_BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError,
    OverflowError, ArithmeticError, AssertionError, Image.DecompressionBombError,
)  # fmt: skip


def as_rgb(picture: Picture) -> Image.Image:
    """What a processor sees, in RGB or RGBX: transparency on white, and turned after all if that
    works now.

    Raise ApiError for a mode that cannot be seen.
    """
    if picture.unseen is not None:
        raise picture.unseen
    assert picture.image is not None, "only what is unseen has none"
    if picture.is_shown:
        return picture.image
    try:
        image = picture.image if picture.is_upright else _upright(picture.image)[0]
        return _convert(image, ImageOptions())
    except _BROKEN as error:
        raise _broken(error) from error


def _broken(error: Exception) -> ApiError:
    return bad_request(f"Failed to load image: {error}")


def _open(data: bytes, limits: MediaLimits) -> Image.Image:
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(str(error)) from error
    except UnidentifiedImageError as error:
        raise bad_request(f"Failed to load image: cannot identify {_describe(data)}") from error
    except _BROKEN as error:
        raise _broken(error) from error
    width, height = image.size
    if 0 < limits.max_image_pixels < width * height:
        raise _too_many_pixels(
            f"Image dimensions {width}x{height} ({width * height} pixels) exceed the maximum of "
            f"{limits.max_image_pixels} pixels. Set VLLM_MAX_IMAGE_PIXELS to increase this limit."
        )
    if image.format in _SCANNED_FORMATS and width * height * data.count(b"\xff\xda") > _MAX_SCAN_PIXELS:
        raise bad_request(
            f"Failed to load image: {width}x{height} pixels in so many scans take too long to decode"
        )
    return image


def _too_many_pixels(message: str) -> ApiError:
    return bad_request(message)


def _describe(data: bytes) -> str:
    """What the bytes are, for a caller who sent something else than a supported picture."""
    if not data:
        return "an empty file"
    size, data = len(data), data[:2048]
    if data[4:8] == b"ftyp":
        return (
            f"this {_BRANDS.get(data[8:12], 'MP4 or similar video')}: the format is not supported"
        )
    for magic, name in _FOREIGN_TYPES:
        if data.startswith(magic):
            return f"this {name} as an image"
    head = data[:512].lstrip().lower()
    if head.startswith((b"<svg", b"<?xml")) and b"svg" in data[:2048].lower():
        return "this SVG drawing: the format is not supported, send it as PNG"
    if head.startswith((b"<!doctype html", b"<html")):
        return "this HTML page as an image"
    return f"the image file ({size} bytes, starting with {data[:8].hex(' ')})"


def _has_late_chunks(image: Image.Image, data: bytes) -> bool:
    """Whether a PNG may carry, behind its pixels, what changes their meaning."""
    if image.format != "PNG":
        return False
    if "XML:com.adobe.xmp" in image.info:
        return True
    pixels = data.find(b"IDAT")
    late = (b"eXIf", b"tRNS", b"Raw profile type", b"XML:com.adobe.xmp")
    return any(data.find(chunk, pixels) >= 0 for chunk in late)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation from the header; a PNG without EXIF is not asked: asking would load it."""
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & set(image.info):
        return 1
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _upright(image: Image.Image) -> tuple[Image.Image, bool]:
    """Turned as EXIF says, if that was possible: what is broken is no reason to refuse a picture.

    Pillow tells of broken pixels once and shows what it has from then on.
    """
    with contextlib.suppress(Exception):
        image.load()
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        return (ImageOps.exif_transpose(image) if orientation in range(2, 9) else image), True
    return image, False


def needs_conversion(image: Image.Image, options: ImageOptions) -> bool:
    """Whether `convert` would change it."""
    if options.mode is None:
        return False
    return image.mode != options.mode or (options.mode == "RGB" and _has_transparency(image))


def _has_transparency(image: Image.Image) -> bool:
    return image.mode in _ALPHA_MODES or "transparency" in image.info


def _convert(image: Image.Image, options: ImageOptions) -> Image.Image:
    if not needs_conversion(image, options):
        return image
    if options.mode == "RGB" and _has_transparency(image):
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        return _flatten(rgba, options.background)
    return image.convert(options.mode)


def _flatten(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas
