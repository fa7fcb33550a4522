"""Media files that take far more to decode than to send. Equal arguments give equal files."""

import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np
from PIL import Image

# --- pictures


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)  # type: ignore[arg-type]
    return file.getvalue()


def jpeg_of_scans(side: int, count: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    data = saved(Image.new("RGB", (side, side), (90, 120, 60)), "JPEG", progressive=True)
    last = data.rfind(b"\xff\xda")
    return data[:last] + data[last:-2] * count + b"\xff\xd9"


def with_exif(num_tags: int) -> bytes:
    """A JPEG whose EXIF tags all name the same 60 000 bytes."""
    size = 60_000
    head = b"MM\0*\0\0\0\x08" + struct.pack(">H", num_tags)
    start = len(head) + 12 * num_tags if num_tags < 100 else 8
    tags = b"".join(
        struct.pack(">HHLL", 0xF000 - number, 7, min(size, 64_000), start)
        for number in range(num_tags - 1, -1, -1)
    )
    exif = (head + tags)[:64_000]
    exif += bytes(max(min(start + size, 64_000) - len(exif), 0))
    plain = saved(Image.new("RGB", (32, 32)), "JPEG")
    block = b"Exif\0\0" + exif
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]


def tiff_of_tags(count: int, size: int) -> bytes:
    """A TIFF whose tags all name the same bytes."""
    start = 8 + 2 + 12 * count + 4
    tags = b"".join(struct.pack("<HHLL", 1000 + number, 7, size, start) for number in range(count))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", count) + tags + bytes(4) + bytes(size)


def qoi(width: int, height: int, *, seed: int = 0) -> bytes:
    """The Quite OK Image format, a byte for each pixel; https://qoiformat.org."""
    head = b"qoif" + struct.pack(">LLBB", width, height, 3, 0)
    first = bytes([0xFE, seed % 256, 0, 0])
    same = b"\x6a"  # as the last one
    return head + first + same * (width * height - 1) + bytes(7) + b"\x01"


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """Of a PNG."""
    check = zlib.crc32(kind + data)
    return struct.pack(">L", len(data)) + kind + data + struct.pack(">L", check)


def png_of(width: int, height: int, colour: int, depth: int, *before: bytes) -> bytes:
    """All pixels 0; `before`: chunks in front of them."""
    per_pixel = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * depth
    row = bytes(1 + -(-width * per_pixel // 8))
    packer = zlib.compressobj(1)
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), *before, chunk(b"IDAT", packed), chunk(b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def png_that_claims(side: int) -> bytes:
    """A size, and one row of pixels."""
    packed = zlib.compress(bytes(1 + side))
    header = struct.pack(">LLBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND")
    return b"\x89PNG\r\n\x1a\n" + chunks


def palette_png(side: int) -> bytes:
    """One byte a pixel, and transparent: four once decoded."""
    return png_of(side, side, 3, 8, chunk(b"PLTE", bytes(768)), chunk(b"tRNS", bytes(256)))


def png_of_chunks(count: int) -> bytes:
    """Metadata in tiny pieces."""
    return png_of(16, 16, 2, 8, chunk(b"tEXt", b"a\0b") * count)


def png_of_texts(count: int) -> bytes:
    """Compressed texts of a megabyte each."""
    text = zlib.compress(bytes(1_000_000), 9)
    return png_of(16, 16, 2, 8, chunk(b"zTXt", b"a\0\0" + text) * count)


def png_of_profile(size: int) -> bytes:
    """A colour profile that is small on the way only."""
    profile = b"a\0\0" + zlib.compress(bytes(size), 9)
    return png_of(16, 16, 2, 8, chunk(b"iCCP", profile))


def animated_png(side: int, frames: int) -> bytes:
    pictures = [Image.new("RGB", (side, side), (n, 0, 0)) for n in range(frames)]
    return saved(pictures[0], "PNG", save_all=True, append_images=pictures[1:])


def animated_gif(side: int, frames: int) -> bytes:
    pictures = [Image.new("P", (side, side), n) for n in range(frames)]
    return saved(pictures[0], "GIF", save_all=True, append_images=pictures[1:])


def gif_of(width: int, height: int) -> bytes:
    """A GIF that claims a size and has a frame of one pixel."""
    small = saved(Image.new("P", (1, 1)), "GIF")
    return small[:6] + struct.pack("<HH", width, height) + small[10:]


def gif_of_comments(count: int) -> bytes:
    plain = saved(Image.new("P", (8, 8)), "GIF")
    comment = b"!\xfe" + b"\xff" + b"a" * 255 + b"\0"
    end = plain.find(b",", 13)
    return plain[:end] + comment * count + plain[end:]


def icon_of(side: int) -> bytes:
    """An ICO that says 16 x 16, around a PNG of another size."""
    inside = png_of(side, side, 6, 8)
    entry = struct.pack("<BBBBHHLL", 16, 16, 0, 0, 1, 32, len(inside), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inside


def psd_of_layers(count: int) -> bytes:
    """A Photoshop file with so many empty layers."""
    header = b"8BPS" + struct.pack(">H6xHLLHH", 1, 3, 64, 64, 8, 3)
    layer = struct.pack(">LLLLH", 0, 0, 1, 1, 1) + struct.pack(">hL", 0, 2)
    layer += b"8BIMnorm" + bytes(4) + struct.pack(">L", 4) + bytes(4)
    layers = struct.pack(">h", count) + layer * count
    info = struct.pack(">L", len(layers)) + layers
    return header + bytes(8) + struct.pack(">L", len(info)) + info + bytes(2) + bytes(64 * 64 * 3)


def bmp_of_runs(width: int, height: int) -> bytes:
    """A BMP whose pixels come in runs of one."""
    pixels = (b"\x01\x05" * width + b"\0\0") * height + b"\0\1"
    info = struct.pack("<LllHHLLllLL", 40, width, height, 1, 8, 1, len(pixels), 0, 0, 256, 0)
    start = 14 + len(info) + 1024
    return b"BM" + struct.pack("<LLL", start + len(pixels), 0, start) + info + bytes(1024) + pixels


def ppm_of_words(width: int, height: int) -> bytes:
    """A PGM whose pixels are written out."""
    return b"P2 %d %d 255\n" % (width, height) + b"7 " * (width * height)


# --- videos


def frame_packets(width: int, height: int, codec: str = "mpeg4") -> list[bytes]:
    """A key frame and one more."""
    context = av.CodecContext.create(codec, "w")
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base = Fraction(1, 25)
    packets = []
    for number in range(2):
        picture = np.full((height, width, 3), 40 * number, np.uint8)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
        frame.pts = number
        packets += [bytes(packet) for packet in context.encode(frame)]
    return packets + [bytes(packet) for packet in context.encode(None)]


def timed_video(
    times_ms: Iterable[int], *, width: int = 64, height: int = 48, format: str = "matroska"
) -> bytes:
    """A video whose frames are shown at these times; each is as grey as its number."""
    file = io.BytesIO()
    times = list(times_ms)
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        encoded = []
        for number in range(len(times)):
            picture = np.full((height, width, 3), number % 256, np.uint8)
            encoded += stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24"))
        encoded += stream.encode()
        for packet, moment in zip(encoded, times, strict=True):
            packet.time_base, packet.pts, packet.dts = Fraction(1, 1000), moment, moment
            container.mux(packet)
    return file.getvalue()


def _years() -> Iterator[int]:
    yield from (0, 40, 80, 120, 3 * 365 * 86_400_000)


def long_mkv() -> bytes:
    """Five frames, the last of them after three years."""
    return timed_video(_years())


def ivf(count: int) -> bytes:
    """So many packets of two bytes; https://wiki.multimedia.cx/index.php/Duck_IVF."""
    head = b"DKIF" + struct.pack("<HH4sHHLLLL", 0, 32, b"VP80", 640, 480, 30, 1, count, 0)
    packets = b"".join(struct.pack("<LQ", 2, number) + b"\x31\x02" for number in range(count))
    return head + packets


def many_streams(count: int) -> bytes:
    """An AVI with so many videos of one frame."""
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        streams = []
        for _ in range(count):
            stream = container.add_stream("mjpeg", rate=5)
            stream.width, stream.height, stream.pix_fmt = 16, 16, "yuvj420p"
            streams.append(stream)
        for stream in streams:
            for packet in stream.encode(
                av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
            ):
                container.mux(packet)
    return file.getvalue()
