"""Only the contiguous finished prefix is ever due."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.offsets import OffsetTracker


def taken(*offsets: int) -> OffsetTracker:
    tracker = OffsetTracker()
    for offset in offsets:
        assert tracker.take(offset)
    return tracker


def test_nothing_is_due_before_the_first_record_is_finished():
    tracker = taken(5, 6, 7)
    tracker.finish(6)
    tracker.finish(7)

    assert tracker.due() is None


def test_the_prefix_is_due_once_its_last_gap_closes():
    tracker = taken(5, 6, 7, 8)
    for offset in (7, 6, 5):
        tracker.finish(offset)

    assert tracker.due() == 8


def test_gaps_in_the_offsets_do_not_hold_the_prefix_back():
    tracker = taken(5, 9, 20)
    tracker.finish(5)
    tracker.finish(9)

    assert tracker.due() == 20


def test_a_commit_is_due_once():
    tracker = taken(5)
    tracker.finish(5)
    tracker.commit(6)

    assert tracker.due() is None


def test_redelivered_records_are_skipped_and_new_ones_taken():
    tracker = taken(5, 6, 7)
    tracker.finish(5)
    tracker.commit(6)
    tracker.restart()

    assert [tracker.take(offset) for offset in (6, 7, 8)] == [False, False, True]
    assert tracker.due() is None


def test_what_another_member_has_committed_meanwhile_is_not_taken_back():
    tracker = taken(5, 6, 7)
    tracker.restart()

    assert tracker.take(40)
    tracker.finish(5)
    assert (tracker.committed, tracker.due()) == (40, None)
    tracker.finish(40)
    assert tracker.due() == 41


def test_distance_is_what_a_crash_would_repeat():
    tracker = taken(5, 6, 7)
    assert tracker.distance == 3

    tracker.finish(5)
    assert tracker.distance == 3
    tracker.commit(6)
    assert tracker.distance == 2
    assert OffsetTracker().distance == 0


def test_what_is_read_past_without_a_record_is_due():
    tracker = taken(5)
    tracker.advance(9)
    assert tracker.due() is None

    tracker.finish(5)
    assert tracker.due() == 9
    assert tracker.take(9)
    assert tracker.due() == 9


def test_a_partition_without_any_record_is_committed_to_its_end():
    tracker = OffsetTracker()
    tracker.advance(7)
    assert (tracker.due(), tracker.distance) == (7, 0)

    tracker.commit(7)
    assert tracker.due() is None
    assert tracker.take(7)
    assert tracker.distance == 1


def test_reading_that_begins_anew_takes_nothing_back():
    tracker = taken(5, 6, 7)
    tracker.restart()
    tracker.advance(5)
    tracker.finish(5)

    assert tracker.due() == 6
    assert [tracker.take(offset) for offset in (6, 7, 8)] == [False, False, True]


@given(st.sets(st.integers(0, 60), min_size=1), st.randoms(), st.integers(0, 5))
def test_in_any_order_of_finishing_everything_below_due_is_finished(offsets, random, every):
    ordered = sorted(offsets)
    tracker = taken(*ordered)
    unfinished = set(ordered)
    last = tracker.committed
    for offset in random.sample(ordered, len(ordered)):
        tracker.finish(offset)
        unfinished.discard(offset)
        due = tracker.due()
        if due is not None:
            assert due > (last or 0) - 1
            assert all(other >= due for other in unfinished)
            if random.randint(0, 5) > every:
                tracker.commit(due)
                last = due

    assert unfinished == set()
    assert tracker.due() in (ordered[-1] + 1, None)
    assert tracker.committed == ordered[-1] + 1 or tracker.due() == ordered[-1] + 1
