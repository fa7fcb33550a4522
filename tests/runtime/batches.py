"""Record batches as brokers keep them, whole and broken, byte by byte."""

import struct
from collections.abc import Sequence

import cramjam
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.util import calc_crc32c, encode_varint

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ENCODERS = [bytes, gzip_encode, snappy_encode, lz4_encode, zstd_encode]
HEADER = struct.Struct(">qiibIhiqqqhii")

Headers = Sequence[tuple[bytes, bytes | None]]


def varint(number: int) -> bytes:
    buffer = bytearray()
    encode_varint(number, buffer.append)
    return bytes(buffer)


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    delta: int, key: bytes | None = b"k", value: bytes | None = b"v", headers: Headers = ()
) -> bytes:
    body = b"\x00" + varint(0) + varint(delta) + field(key) + field(value) + varint(len(headers))
    return field(body + b"".join(field(name) + field(v) for name, v in headers))


def batch(
    base: int,
    records: Sequence[bytes],
    *,
    codec: int = 0,
    attributes: int = 0,
    last_delta: int | None = None,
    count: int | None = None,
    payload: bytes | None = None,
    timestamp_ms: int = 1_700_000_000_000,
) -> bytes:
    """A batch with the right checksum around whatever is in it."""
    if payload is None:
        payload = bytes(_ENCODERS[codec](b"".join(records)))
    fields = [base, 49 + len(payload), 0, 2, 0, attributes | codec]
    fields += [len(records) - 1 if last_delta is None else last_delta, timestamp_ms]
    fields += [timestamp_ms, -1, -1, -1, len(records) if count is None else count]
    whole = bytearray(HEADER.pack(*fields) + payload)
    struct.pack_into(">I", whole, 17, calc_crc32c(bytes(whole[21:])))
    return bytes(whole)


def bomb(base: int, size: int) -> bytes:
    """A small batch of one record with `size` bytes of value, as zstd."""
    value = bytes(size)
    return batch(base, [b""], codec=4, payload=bytes(cramjam.zstd.compress(record(0, b"k", value))))
