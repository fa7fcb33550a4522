"""How much a loop may take, and what has to wait."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.bus import TopicPartition
from runtime.flow import Limits, Load, paused, room
from schemas.topics import MAX_REQUEST_RECORD_BYTES

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
LIMITS = Limits(records=4, bytes=4 * MAX_REQUEST_RECORD_BYTES, distance=10)


def test_room_is_what_is_left_of_the_records():
    assert room(Load(records=1, bytes=0, distances={}), LIMITS) == 3


def test_room_counts_on_the_largest_records():
    load = Load(records=0, bytes=2 * MAX_REQUEST_RECORD_BYTES + 1, distances={})

    assert room(load, LIMITS) == 1


def test_a_limit_below_the_largest_record_still_lets_one_in():
    assert room(Load(records=0, bytes=0, distances={}), Limits(bytes=1)) == 1


def test_only_the_partition_that_is_too_far_ahead_waits():
    assert paused(Load(records=0, bytes=0, distances={P: 10, Q: 9}), LIMITS) == {P}


def test_without_room_all_wait():
    assert paused(Load(records=4, bytes=0, distances={P: 0, Q: 0}), LIMITS) == {P, Q}


@given(st.integers(0, 40), st.integers(0, 10**9), st.integers(1, 40), st.integers(1, 10**9))
def test_taking_the_room_oversteps_bytes_by_one_record_at_most(records, held, limit, num_bytes):
    limits = Limits(records=limit, bytes=num_bytes)
    count = room(Load(records=records, bytes=held, distances={}), limits)

    assert 0 <= count <= max(limit - records, 0)
    if count:
        assert held + (count - 1) * MAX_REQUEST_RECORD_BYTES < num_bytes
