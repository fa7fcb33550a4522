"""Screens what a broker hands out, so that every batch can be parsed and every record read.

A batch (message format 2, KIP-98 and Kafka's `DefaultRecordBatch`) that is fine stays as it is. A
compressed one is decompressed within a limit. What cannot be read becomes a mark: a record at its
offset that says why. Data in, data out; knows no client and no connection. Blocking.
"""

import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka.record.control_record import ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.util import calc_crc32c, encode_varint

from runtime.bus import codecs
from runtime.bus.codecs import CodecError

MAX_EXPANDED_BYTES = 32 * 1024 * 1024
"""What one compressed batch may hold; more is set aside unread."""

MAX_RECORDS = 100_000
"""Of one batch, likewise: a batch that is not consumed at once is parsed anew after a pause."""

MARK = uuid.uuid4().hex
"""Name of the one header of a mark. Made for this process: nobody else can write one."""

_PREFIX = struct.Struct(">qi")  # base offset, bytes after it
_MAGIC_AT = 16
_LEGACY_ATTRIBUTES_AT = 17
_MIN_BATCH_BYTES = 26  # the least of any format
_CRC_FROM = 21
_CODEC, _CONTROL = 0x07, 0x20
_NO_PRODUCER = (-1, -1, -1)


class _Header(NamedTuple):
    base: int
    length: int
    epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    first_ms: int
    max_ms: int
    producer: int
    producer_epoch: int
    sequence: int
    num_records: int


_HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(slots=True)
class Screened:
    """A part of one partition, from the first batch on."""

    data: bytes
    spent: int
    """Bytes that came out of compressed batches, also of those that were set aside."""
    is_cut: bool = False
    """There was no room for the next batch; it has to be fetched again."""
    problems: list[str] = field(default_factory=list)


class _Unreadable(Exception):
    """A batch as a whole, up to the offset `last`."""

    def __init__(self, reason: str, last: int) -> None:
        super().__init__(reason)
        self.last = last


class _NoRoom(Exception):
    """Not now."""


def is_heavy(data: bytes, light_bytes: int) -> bool:
    """Whether screening it takes long enough to do it elsewhere than on an event loop."""
    return len(data) > light_bytes or any(
        batch[_MAGIC_AT] < 2 or batch[_CRC_FROM + 1] & _CODEC for _, batch in _batches(data)
    )


def screen(data: bytes, *, first: int, end: int, room: int) -> Screened:
    """Screen the record batches of a fetched partition.

    `first` is the offset that was asked for, `end` one past the newest record there is, and `room`
    the bytes that compressed batches may expand to.
    """
    pieces: list[bytes | memoryview] = []
    screened = Screened(b"", 0)
    is_changed = False
    for base, batch in _batches(data):
        try:
            piece = _screen_batch(base, batch, first, end, room - screened.spent, screened)
        except _NoRoom:
            screened.is_cut = True
            break
        is_changed |= piece is not batch
        pieces.append(piece)
    if not (pieces or screened.is_cut) and _is_framed_wrongly(data):
        error = _Unreadable("the length of a batch is wrong", first)
        pieces.append(_mark_batch(first, error, screened))
        is_changed = True
    # Without the start of a batch that did not fit: aiokafka would skip what is longer than that.
    size = sum(map(len, pieces))
    screened.data = data if not is_changed and size == len(data) else b"".join(pieces)
    return screened


def _batches(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Whole batches with their base offsets, up to the first that is not."""
    view, at = memoryview(data), 0
    while len(data) - at >= _MIN_BATCH_BYTES:
        base, length = _PREFIX.unpack_from(data, at)
        stop = at + _PREFIX.size + length
        if stop - at < _MIN_BATCH_BYTES or stop > len(data):
            return
        yield base, view[at:stop]
        at = stop


def _is_framed_wrongly(data: bytes) -> bool:
    if len(data) < _PREFIX.size:
        return False
    return int(_PREFIX.unpack_from(data)[1]) < _MIN_BATCH_BYTES - _PREFIX.size


def _screen_batch(
    base: int, batch: memoryview, first: int, end: int, room: int, screened: Screened
) -> bytes | memoryview:
    try:
        if not 0 <= base < end:
            raise _Unreadable(f"offset {base} in a partition that ends at {end}", first)
        if batch[_MAGIC_AT] < 2:
            return _screen_legacy(base, batch)
        header = _checked_header(batch, end)
        if header.base + header.last_delta < first:  # the base offset is under no checksum
            raise _Unreadable(f"a batch that ends before {first}, which was asked for", first)
        if header.attributes & _CONTROL:
            return batch if _is_control(batch) else _rebuilt(header, b"", 0)
        return _screen_records(header, batch, first, room, screened)
    except _Unreadable as error:
        return _mark_batch(max(base, first) if base < end else first, error, screened)


def _screen_legacy(base: int, batch: memoryview) -> memoryview:
    """Formats 0 and 1, which no broker since 4.0 writes; compressed ones are not read."""
    if batch[_LEGACY_ATTRIBUTES_AT] & _CODEC:
        raise _Unreadable("a compressed message of format 0 or 1", base)
    try:
        legacy = LegacyRecordBatch(batch, batch[_MAGIC_AT])
        if legacy.validate_crc() and len(list(legacy)) == 1:
            return batch
    except Exception as error:
        raise _Unreadable(f"a broken message of format 0 or 1: {error!r}", base) from error
    raise _Unreadable("the checksum of a message is wrong", base)


def _checked_header(batch: memoryview, end: int) -> _Header:
    if len(batch) < _HEADER.size:
        raise _Unreadable(f"a batch of {len(batch)} bytes", _PREFIX.unpack_from(batch)[0])
    header = _Header(*_HEADER.unpack_from(batch))
    # As good a guess as any where the header is broken itself.
    last = min(header.base + max(header.last_delta, 0), end - 1)
    if header.magic != 2:
        raise _Unreadable(f"message format {header.magic}", last)
    if header.crc != calc_crc32c(batch[_CRC_FROM:]):
        raise _Unreadable("the checksum of the batch is wrong", last)
    if header.last_delta < 0:
        raise _Unreadable(f"a batch that ends at {header.last_delta}", last)
    if header.num_records > MAX_RECORDS:
        reason = f"{header.num_records} records in a batch are more than {MAX_RECORDS}"
        raise _Unreadable(reason, header.base + header.last_delta)
    return header


def _screen_records(
    header: _Header, batch: memoryview, first: int, room: int, screened: Screened
) -> bytes | memoryview:
    payload: bytes | memoryview = batch[_HEADER.size :]
    if codec := header.attributes & _CODEC:
        try:
            payload = _expand(codec, payload, room, screened)
        except CodecError as error:
            raise _Unreadable(str(error), header.base + header.last_delta) from error
        batch = memoryview(_rebuilt(header, payload, header.num_records))
    if _is_readable(header, batch):
        return batch
    return _salvaged(header, payload, first, screened)


def _is_control(batch: memoryview) -> bool:
    """Whether aiokafka can tell what it says; a compacted one may be empty."""
    try:
        ControlRecord.parse(next(DefaultRecordBatch(batch)).key)
    except Exception:
        return False
    return True


def _expand(codec: int, payload: bytes | memoryview, room: int, screened: Screened) -> bytes:
    if room < MAX_EXPANDED_BYTES:
        raise _NoRoom
    try:
        expanded = codecs.decompress(codec, payload, MAX_EXPANDED_BYTES)
    except CodecError:
        screened.spent += MAX_EXPANDED_BYTES
        raise
    screened.spent += len(expanded)
    return expanded


def _is_readable(header: _Header, batch: memoryview) -> bool:
    """Whether aiokafka reads every record, at offsets that ascend within the batch."""
    newest = header.base - 1
    try:
        for record in DefaultRecordBatch(batch):
            if record.offset <= newest:
                return False
            newest = record.offset
    except Exception:  # whatever it may be: UnicodeDecodeError, CorruptRecordException, …
        return False
    return newest <= header.base + header.last_delta


def _rebuilt(header: _Header, payload: bytes | memoryview, count: int) -> bytes:
    """The same batch around other records, not compressed."""
    flags = _CODEC | (0 if payload else _CONTROL)
    changed = header._replace(
        length=_HEADER.size - _PREFIX.size + len(payload),
        attributes=header.attributes & ~flags,
        num_records=count,
    )
    rebuilt = bytearray(_HEADER.size + len(payload))
    _HEADER.pack_into(rebuilt, 0, *changed)
    rebuilt[_HEADER.size :] = payload
    crc = calc_crc32c(memoryview(rebuilt)[_CRC_FROM:])
    _HEADER.pack_into(rebuilt, 0, *changed._replace(crc=crc))
    return bytes(rebuilt)


# What cannot be read.


def _mark_batch(first: int, error: _Unreadable, screened: Screened) -> bytes:
    """In the place of a whole batch."""
    now = int(time.time() * 1000)
    delta = max(error.last - first, 0)
    header = _Header(first, 0, 0, 2, 0, 0, delta, now, now, *_NO_PRODUCER, 1)
    return _rebuilt(header, _sized(_mark(first, first, delta, str(error), screened)), 1)


def _mark(base: int, first: int, delta: int, reason: str, screened: Screened) -> bytes:
    """Stands at the last of the offsets it is for: reading goes on after them."""
    last = base + delta
    offsets = f"offset {last}" if first == last else f"offsets {first} to {last}"
    problem = f"{offsets} cannot be read: {reason}"
    screened.problems.append(problem)
    nothing = _varint(-1)
    head = b"\x00" + _varint(0) + _varint(delta) + nothing + nothing + _varint(1)
    return head + _sized(MARK.encode()) + _sized(problem.encode(errors="backslashreplace"))


def _salvaged(
    header: _Header, payload: bytes | memoryview, first: int, screened: Screened
) -> bytes:
    """Every record that can be read, with header names that can; marks for the others."""
    base, data, at, delta = header.base, bytes(payload), 0, -1
    records: list[bytes] = []
    for left in range(header.num_records, 0, -1):
        try:
            body, at = _next_body(data, at)
        except (IndexError, ValueError) as error:
            if delta < header.last_delta and base + header.last_delta >= first:
                reason = f"{left} broken records: {error}"
                start = max(base + delta + 1, first)
                records.append(_mark(base, start, header.last_delta, reason, screened))
            break
        try:
            following, body = _repaired(body)
            if not delta < following <= header.last_delta:
                raise ValueError(f"offset {base + following} after {base + delta}")
            delta = following
        except (IndexError, ValueError) as error:
            if delta == header.last_delta:  # no offset is left where a mark could stand
                screened.problems.append(f"{left} records after offset {base + delta}: {error}")
                break
            delta += 1
            if base + delta < first:
                continue
            body = _mark(base, base + delta, delta, str(error), screened)
        records.append(body)
    return _rebuilt(header, b"".join(map(_sized, records)), len(records))


def _next_body(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_varint(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError(f"a record of {size} bytes")
    return data[at : at + size], at + size


def _repaired(body: bytes) -> tuple[int, bytes]:
    """(offset delta, the record with header names in UTF-8). ValueError where it is broken."""
    _, at = _read_varint(body, 1)
    delta, at = _read_varint(body, at)
    for _ in ("key", "value"):
        _, at = _read_field(body, at)
    headers_at = at
    count, at = _read_varint(body, at)
    if count < 0:
        raise ValueError(f"{count} headers")
    headers = [_varint(count)]
    for _ in range(count):
        name, at = _read_field(body, at)
        if name is None:
            raise ValueError("a header without a name")
        value, at = _read_field(body, at)
        headers.append(_sized(name.decode(errors="backslashreplace").encode()))
        headers.append(_varint(-1) if value is None else _sized(value))
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes too many")
    return delta, body[:headers_at] + b"".join(headers)


def _read_field(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(body, at)
    if size > len(body) - at:
        raise ValueError(f"a field of {size} bytes in a record of {len(body)}")
    return (None, at) if size < 0 else (body[at : at + size], at + size)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits. IndexError where the data ends."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("a number of more than 64 bits")


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    buffer = bytearray()
    encode_varint(number, buffer.append)
    return bytes(buffer)
