"""When a server process that died is started again."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.deaths import Deaths

LONG_S = 3600.0
lives = st.lists(st.none() | st.floats(0, LONG_S))


def after(*served_s: float | None) -> Deaths:
    return list(accumulate(served_s, Deaths.after, initial=Deaths()))[-1]


def test_one_that_dies_once_is_replaced_at_once():
    assert after(LONG_S).pause_s == 0
    assert after(1.0).pause_s == 0
    assert after(None).pause_s == 0


def test_pauses_grow_while_it_goes_on_dying_and_end_with_a_long_life():
    assert [after(*[1.0] * n).pause_s for n in (2, 3, 4)] == [1, 2, 4]
    assert after(*[1.0] * 4, LONG_S).pause_s == 0


def test_who_never_lives_to_serve_is_given_up():
    assert not after(None, None).is_hopeless
    assert after(None, None, None).is_hopeless


def test_a_port_that_can_be_served_now_and_then_is_not_given_up():
    assert not after(*[None, None, 0.1] * 10).is_hopeless


@given(lives)
def test_no_pause_is_long(served_s):
    assert 0 <= after(*served_s).pause_s <= 30
