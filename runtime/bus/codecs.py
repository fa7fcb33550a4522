"""Decompresses batches of records within a limit; the memory is bounded before it is spent.

The framings are those of Kafka's own clients (`org.apache.kafka.common.compress`). Blocking.
"""

import struct
import zlib
from collections.abc import Callable

import cramjam

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

# What xerial's SnappyOutputStream begins with: magic, version, oldest compatible version.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">i")
_FIRST_BUFFER_BYTES = 64 * 1024
_USUAL_RATIO = 8
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS


class CodecError(Exception):
    """The data is broken, expands beyond the limit, or its codec is unknown."""


def decompress(codec: int, data: bytes | memoryview, limit: int) -> bytes:
    """All of it. Raises CodecError, at the latest once more than `limit` bytes came out."""
    try:
        if codec == GZIP:
            return _gunzip(data, limit)
        if codec == SNAPPY:
            return _unsnap(data, limit)
        if codec == LZ4:
            return _grow(cramjam.lz4.decompress_into, data, limit)
        if codec == ZSTD:
            return _grow(cramjam.zstd.decompress_into, data, limit)
    except (zlib.error, cramjam.DecompressionError, struct.error, MemoryError) as error:
        raise CodecError(f"it does not decompress within {limit} bytes: {error}") from error
    raise CodecError(f"codec {codec} is unknown")


def _gunzip(data: bytes | memoryview, limit: int) -> bytes:
    """One member or several, as Java's GZIPInputStream reads them."""
    pieces, left = [], limit
    while data:
        member = zlib.decompressobj(_WITH_GZIP_HEADER)
        piece = member.decompress(data, left + 1)
        left -= len(piece)
        if left < 0:
            raise CodecError(f"it expands beyond {limit} bytes")
        if not member.eof:
            raise CodecError("it ends too early")
        pieces.append(piece)
        data = member.unused_data
    return b"".join(pieces)


def _unsnap(data: bytes | memoryview, limit: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnap_block(data, limit)
    pieces, left, at = [], limit, _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if not 0 < size <= len(data) - at:
            raise CodecError(f"a block of {size} bytes at {at} of {len(data)}")
        pieces.append(_unsnap_block(data[at : at + size], left))
        left -= len(pieces[-1])
        at += size
    return b"".join(pieces)


def _unsnap_block(data: bytes | memoryview, limit: int) -> bytes:
    # Read from the block's first bytes: nothing is allocated for it yet.
    size = cramjam.snappy.decompress_raw_len(data)
    if size > limit:
        raise CodecError(f"it expands beyond the limit, by {size - limit} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _grow(decompress_into: Callable[..., int], data: bytes | memoryview, limit: int) -> bytes:
    """The library takes a buffer of fixed size, and a large one is not for nothing."""
    size = min(max(_FIRST_BUFFER_BYTES, _USUAL_RATIO * len(data)), limit)
    while True:
        buffer = bytearray(size)
        try:
            return bytes(memoryview(buffer)[: decompress_into(data, buffer)])
        except cramjam.DecompressionError:
            if size == limit:
                raise
        size = min(size * _USUAL_RATIO, limit)
