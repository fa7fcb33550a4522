"""Which picture files are decoded by a thread of ours: those whose headers bound memory and time.

Everything else (rare formats, large or many-scan pictures, odd metadata) is for a decoder process,
which can be ended. Looks at bytes only, and never refuses: a file that is not plain may be sound.
"""

from collections.abc import Iterator
from struct import error as StructError
from struct import unpack_from

MAX_PIXELS = 2**24
MAX_SCAN_PIXELS = 2**26
"""Pixels times scans: a progressive JPEG is gone through once for each scan."""
MAX_FILE_BYTES = 32 * 1024 * 1024
_MAX_METADATA_BYTES = 512 * 1024
_MAX_SEGMENTS = 64
_MAX_TAGS = 256

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN = 0xDA
_APP1, _APP2 = 0xE1, 0xE2
_KNOWN_CHUNKS = frozenset(
    {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"pHYs"}
    | {b"sBIT", b"bKGD", b"hIST", b"tIME", b"tEXt"}
)
_BEHIND_PIXELS = frozenset({b"IDAT", b"IEND", b"tIME", b"tEXt"})
_SUB_DIRECTORIES = frozenset({0x8769, 0x8825, 0xA005})
"""Exif, GPS and interoperability tags, which are read and written anew when a picture is turned."""


def is_plain(data: bytes) -> bool:
    """Whether Pillow needs little memory and time for it, whatever is behind the header."""
    if len(data) > MAX_FILE_BYTES:
        return False
    try:
        if data.startswith(_JPEG):
            return _is_plain_jpeg(data)
        if data.startswith(_PNG):
            return _is_plain_png(data)
        return data.startswith(b"RIFF") and data[8:12] == b"WEBP" and _is_plain_webp(data)
    except (StructError, IndexError):
        return False  # cut off: what it is good for is found out where it does no harm


def _fits(width: int, height: int, scans: int = 1) -> bool:
    pixels = width * height
    return 0 < pixels <= MAX_PIXELS and pixels * scans <= MAX_SCAN_PIXELS


def _is_plain_jpeg(data: bytes) -> bool:
    width = height = 0
    at = 2
    for _ in range(_MAX_SEGMENTS):
        mark, marker, length = unpack_from(">BBH", data, at)
        if mark != 0xFF or at > _MAX_METADATA_BYTES:
            return False
        if marker == _START_OF_SCAN:
            return _fits(width, height, data.count(b"\xff\xda", at))
        if marker in _FRAME_MARKERS:
            height, width = unpack_from(">HH", data, at + 5)
        if marker == _APP2 and data.startswith(b"MPF\0", at + 4):
            return False  # several pictures
        is_exif = marker == _APP1 and data.startswith(b"Exif\0\0", at + 4)
        if is_exif and not _is_plain_exif(data[at + 10 : at + 2 + length]):
            return False
        at += 2 + length
    return False


def _is_plain_exif(tiff: bytes) -> bool:
    """Tags may name the same bytes over and over: there must be few in each directory."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return False
    (first,) = unpack_from(order + "L", tiff, 4)
    directories, seen = [first], 0
    while directories:
        seen += 1
        at = directories.pop()
        (count,) = unpack_from(order + "H", tiff, at)
        if count > _MAX_TAGS or seen > len(_SUB_DIRECTORIES) + 1:
            return False
        directories += _pointers(tiff, at + 2, count, order)
    return True


def _pointers(tiff: bytes, at: int, count: int, order: str) -> Iterator[int]:
    for number in range(count):
        tag, _, _, value = unpack_from(order + "HHLL", tiff, at + 12 * number)
        if tag in _SUB_DIRECTORIES:
            yield value


def _is_plain_png(data: bytes) -> bool:
    width, height = unpack_from(">LL", data, 16)
    most = _MAX_SEGMENTS + len(data) // 2048
    at, pixels_at = 8, 0
    for _ in range(most):
        length, kind = unpack_from(">L4s", data, at)
        allowed = _BEHIND_PIXELS if pixels_at else _KNOWN_CHUNKS
        if kind not in allowed or (kind == b"tEXt" and data.startswith(b"Raw profile", at + 8)):
            return False
        if kind == b"IEND":
            return _fits(width, height)
        if kind == b"IDAT" and not pixels_at:
            pixels_at = at
            if at > _MAX_METADATA_BYTES:
                return False
        at += 12 + length
    return False


def _is_plain_webp(data: bytes) -> bool:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = unpack_from("<HH", data, 26)
        return _fits(width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = unpack_from("<L", data, 21)
        return _fits((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind != b"VP8X" or data[20] & 0b0000_1110:  # EXIF, XMP, animation
        return False
    width = int.from_bytes(data[24:27], "little") + 1
    return _fits(width, int.from_bytes(data[27:30], "little") + 1)
