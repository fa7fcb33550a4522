"""Whatever a broker hands out can be read after it was screened, or says why not."""

import gzip
import struct
import zlib
from contextlib import suppress

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.bus.codecs import CodecError, decompress
from runtime.bus.record_batches import (
    MARK,
    MAX_EXPANDED_BYTES,
    MAX_RECORDS,
    is_heavy,
    screen,
)
from tests.runtime.batches import CODECS, batch, bomb, field, record, varint

END = 1_000_000
ROOM = 2 * MAX_EXPANDED_BYTES


def read(data: bytes, first: int = 0) -> tuple[list, int]:
    """What aiokafka makes of screened bytes: its records, and where it goes on."""
    records = MemoryRecords(data)
    parsed = PartitionRecords(("t", 0), records, [], first, None, None, False, READ_COMMITTED)
    parsed._tp = type("Partition", (), {"topic": "t", "partition": 0})()
    return list(parsed), parsed.next_fetch_offset


def screened(data: bytes, first: int = 0, room: int = ROOM) -> tuple[list, int]:
    return read(screen(data, first=first, end=END, room=room).data, first)


def reasons(records: list) -> dict[int, str]:
    """Offsets of the marks and what they say."""
    said = {r.offset: dict(r.headers).get(MARK) for r in records}
    return {offset: text.decode() for offset, text in said.items() if text is not None}


def test_a_batch_that_is_fine_stays_as_it_is():
    data = batch(0, [record(0), record(1, headers=[(b"a", None)])]) + batch(2, [record(0)])

    assert screen(data, first=0, end=END, room=ROOM).data is data
    assert not is_heavy(data, 1024)


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_every_codec_is_read(codec: int):
    data = batch(7, [record(n, b"k%d" % n, b"v" * 1000) for n in range(5)], codec=codec)

    records, after = screened(data, 7)

    assert [(r.offset, r.key, r.value) for r in records] == [
        (7 + n, b"k%d" % n, b"v" * 1000) for n in range(5)
    ]
    assert after == 12
    assert is_heavy(data, 1 << 20) == (codec != 0)


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_a_header_name_that_is_not_text_harms_nobody(codec: int):
    odd = [(b"\xff\xfe\x80", b"1"), (b"note", None), (b"ok", b"2")]
    data = batch(0, [record(0), record(1, None, b"odd", odd), record(2)], codec=codec)

    records, after = screened(data)

    assert [r.offset for r in records] == [0, 1, 2]
    assert records[1].value == b"odd"
    assert dict(records[1].headers) == {"\\xff\\xfe\\x80": b"1", "note": None, "ok": b"2"}
    assert after == 3


def test_a_wrong_checksum_sets_the_whole_batch_aside():
    broken = bytearray(batch(5, [record(n) for n in range(3)]))
    broken[-1] ^= 1

    records, after = screened(batch(4, [record(0)]) + bytes(broken) + batch(8, [record(0)]), 4)

    assert [r.offset for r in records] == [4, 7, 8]
    assert reasons(records) == {
        7: "offsets 5 to 7 cannot be read: the checksum of the batch is wrong"
    }
    assert after == 9


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_a_broken_payload_sets_the_batch_aside(codec: int):
    data = batch(5, [b"", b""], codec=codec, payload=b"nonsense") + batch(7, [record(0)])

    records, after = screened(data, 5)

    assert list(reasons(records)) == [6]
    assert ([r.offset for r in records], after) == ([6, 7], 8)


def test_a_batch_that_expands_beyond_the_limit_is_set_aside():
    data = bomb(0, MAX_EXPANDED_BYTES) + batch(1, [record(0)])

    result = screen(data, first=0, end=END, room=ROOM)
    records, after = read(result.data)

    assert list(reasons(records)) == [0]
    assert "within" in reasons(records)[0]
    assert ([r.offset for r in records], after) == ([0, 1], 2)
    assert result.spent == MAX_EXPANDED_BYTES


def test_a_batch_of_too_many_records_is_set_aside():
    count = MAX_RECORDS + 1
    data = batch(0, [], payload=b"", count=count, last_delta=count - 1, codec=CODECS["zstd"])

    records, after = screened(data + batch(count, [record(0)]))

    assert "100001 records" in reasons(records)[count - 1]
    assert ([r.offset for r in records], after) == ([count - 1, count], count + 1)


def test_what_finds_no_room_is_left_for_the_next_fetch():
    data = b"".join(bomb(n, 30 * 1024 * 1024) for n in range(4))

    result = screen(data, first=0, end=END, room=ROOM)
    nothing = screen(data, first=0, end=END, room=MAX_EXPANDED_BYTES - 1)

    assert [r.offset for r in read(result.data)[0]] == [0, 1]
    assert result.is_cut
    assert (nothing.data, nothing.is_cut, nothing.problems) == (b"", True, [])


def test_bombs_spend_room_although_nothing_of_them_is_kept():
    data = b"".join(bomb(n, MAX_EXPANDED_BYTES) for n in range(50))

    result = screen(data, first=0, end=END, room=ROOM)

    assert len(result.problems) == 2
    assert result.is_cut


def test_a_broken_record_does_not_take_its_neighbours_along():
    broken = field(b"\x00" + varint(0) + varint(1) + varint(1000) + b"key is too short")
    data = batch(0, [record(0), broken, record(2)])

    records, after = screened(data)

    assert [r.offset for r in records] == [0, 1, 2]
    assert list(reasons(records)) == [1]
    assert after == 3


def test_what_follows_a_broken_length_is_set_aside_together():
    data = batch(0, [record(0), varint(1 << 30), record(2)])

    records, after = screened(data)

    assert [r.offset for r in records] == [0, 2]
    assert reasons(records)[2].startswith("offsets 1 to 2 cannot be read: 2 broken records")
    assert after == 3


@pytest.mark.parametrize("deltas", [[0, 0], [1, 0], [0, 9], [-1, 0]])
def test_offsets_that_do_not_ascend_within_the_batch_are_no_offsets(deltas: list[int]):
    result = screen(
        batch(0, [record(d) for d in deltas], last_delta=1), first=0, end=END, room=ROOM
    )
    records, after = read(result.data)

    assert all(0 <= r.offset <= 1 for r in records)
    assert result.problems
    assert after == 2


@pytest.mark.parametrize("base", [-1, 1 << 40])
def test_a_batch_outside_of_the_partition_moves_reading_on_by_one(base: int):
    records, after = screened(batch(base, [record(0)]), 5)

    assert list(reasons(records)) == [5]
    assert after == 6


@pytest.mark.parametrize("length", [-100, 0, 13])
def test_a_length_that_cannot_be_moves_reading_on_by_one(length: int):
    data = struct.pack(">qi", 5, length) + bytes(100)

    records, after = screened(data, 5)

    assert list(reasons(records)) == [5]
    assert after == 6


def test_the_start_of_a_batch_that_did_not_fit_is_cut_off():
    whole, rest = batch(0, [record(0)]), batch(1, [record(0, value=bytes(1000))])

    assert screen(whole + rest[:500], first=0, end=END, room=ROOM).data == whole
    assert screen(rest[:500], first=1, end=END, room=ROOM).data == b""


def test_what_was_given_out_before_is_not_reported_again():
    broken = bytearray(batch(5, [record(n) for n in range(3)]))
    broken[-1] ^= 1

    records, after = screened(bytes(broken), 6)

    assert reasons(records) == {
        7: "offsets 6 to 7 cannot be read: the checksum of the batch is wrong"
    }
    assert after == 8


def test_messages_of_old_formats_are_read_uncompressed_and_set_aside_compressed():
    def message(attributes: int, value: bytes) -> bytes:
        after_crc = struct.pack(">bbqi", 1, attributes, 1_600_000_000_000, -1)
        after_crc += struct.pack(">i", len(value)) + value
        crc = struct.pack(">I", zlib.crc32(after_crc))
        return struct.pack(">qi", 3, len(crc + after_crc)) + crc + after_crc

    plain, packed = screened(message(0, b"old"), 3), screened(message(1, gzip.compress(b"x")), 3)

    assert [(r.offset, r.value) for r in plain[0]] == [(3, b"old")]
    assert list(reasons(packed[0])) == [3]
    assert plain[1] == packed[1] == 4


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_leaves_something_that_is_read_to_its_end(data):
    codec = data.draw(st.sampled_from(list(CODECS.values())))
    whole = batch(10, [record(n, headers=[(b"h", b"v")]) for n in range(4)], codec=codec)
    whole += batch(14, [record(0)])
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    records, after = screened(bytes(damaged), 10)

    assert after > 10 or not records
    assert [r.offset for r in records] == sorted({r.offset for r in records})


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(-1, 8), st.integers(-1, 8), st.integers(0, 4))
def test_any_records_under_a_right_checksum_are_read_to_their_end(payload, count, last, codec):
    data = batch(10, [payload], codec=codec, count=count, last_delta=last)

    records, after = screened(data, 10)

    assert after == max(10 + last, 10) + 1
    assert all(10 <= r.offset < after for r in records)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([1, 2, 3, 4]), st.integers(0, 500))
def test_decompression_gives_bytes_within_the_limit_or_a_codec_error(data, codec, limit):
    with suppress(CodecError):
        assert len(decompress(codec, data, limit)) <= limit
