"""Waits grow, stay within bounds and deadlines, and end."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.retry import RetryPolicy

POLICY = RetryPolicy(max_attempts=4, first_delay_s=1, max_delay_s=3)


def test_waits_double_up_to_the_largest_and_then_end():
    delays = [POLICY.delay_s(n, jitter=0.999999) for n in (1, 2, 3, 4)]

    assert [round(d, 3) if d else d for d in delays] == [1, 2, 3, None]


def test_a_wait_is_no_shorter_than_asked_for():
    assert POLICY.delay_s(1, jitter=0, retry_after_s=7) == 7


def test_a_wait_never_goes_beyond_the_deadline():
    assert POLICY.delay_s(1, jitter=0, retry_after_s=7, remaining_s=0.25) == 0.25
    assert POLICY.delay_s(1, jitter=0, remaining_s=-5) == 0


@given(
    st.integers(1, 10**6),
    st.floats(0, 0.999),
    st.none() | st.floats(0, 100),
    st.none() | st.floats(-100, 100),
)
def test_a_wait_is_bounded_whatever_is_asked(attempts, jitter, after, remaining):
    policy = RetryPolicy(max_attempts=10**6)
    delay = policy.delay_s(attempts, jitter=jitter, retry_after_s=after, remaining_s=remaining)

    if attempts == 10**6:
        assert delay is None
    else:
        assert 0 <= delay <= max(policy.max_delay_s, after or 0)
        assert remaining is None or delay <= max(remaining, 0)


@given(st.integers(1, 100), st.floats(0, 0.999), st.floats(0, 0.999))
def test_jitter_at_most_halves_a_wait(attempts, one, two):
    policy = RetryPolicy(max_attempts=1000)

    assert policy.backoff_s(attempts, jitter=one) <= 2 * policy.backoff_s(attempts, jitter=two)
