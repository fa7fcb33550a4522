import pytest

from workers.derender.model import EosIds
from workers.derender.outputs import (
    Ending,
    StopRules,
    find_stop,
    output_text,
    without_stop_token,
)

EOS = EosIds(primary=9, all=frozenset({8, 9}))


class Letters:
    """A decoder to which 1 is a, 2 is b, and so on."""

    def feed(self, ids):
        return "".join(chr(96 + token) for token in ids)


@pytest.mark.parametrize(
    ("ending", "rules", "expected"),
    [
        # what the engine told
        (Ending([1, 5], "stop", 5), StopRules(), ([1], 5)),
        (Ending([1, 5], "stop", 5), StopRules(is_included=True), ([1, 5], 5)),
        (Ending([1, 5], "stop", 7), StopRules(), ([1, 5], 7)),
        (Ending([1, 9], "stop", "x"), StopRules(), ([1, 9], "x")),
        # what can be seen
        (Ending([1, 9], "stop", None), StopRules(), ([1], None)),
        (Ending([1, 8], "stop", None), StopRules(), ([1], 8)),
        (Ending([1, 9], "stop", None), StopRules(ignore_eos=True), ([1, 9], None)),
        (Ending([1, 5], "stop", None), StopRules(token_ids=frozenset({5})), ([1], 5)),
        (
            Ending([1, 9], "stop", None),
            StopRules(ignore_eos=True, token_ids=frozenset({9})),
            ([1], 9),
        ),
        (Ending([1, 9], "stop", None), StopRules(is_included=True), ([1, 9], None)),
        (Ending([1, 5], "stop", None), StopRules(), ([1, 5], None)),
        # nothing stopped it
        (Ending([1, 9], "length", None), StopRules(), ([1, 9], None)),
        (Ending([1, 9], None, None), StopRules(), ([1, 9], None)),
        (Ending([], "stop", None), StopRules(), ([], None)),
    ],
)
def test_the_token_that_ended_an_output_is_not_decoded(ending, rules, expected):
    assert without_stop_token(ending, rules, EOS) == expected


@pytest.mark.parametrize(
    ("ending", "rules", "expected"),
    [
        (Ending([1, 2, 3], "stop", "b"), StopRules(), ("a", "b")),
        (Ending([1, 2, 3], "stop", "b"), StopRules(is_included=True), ("ab", "b")),
        (Ending([1, 2, 3], "stop", "bc"), StopRules(is_included=True), ("abc", "bc")),
        (Ending([1, 2, 3], "stop", None), StopRules(("c", "b")), ("a", "b")),
        (Ending([1, 2, 3], "length", None), StopRules(("b",)), ("abc", None)),
        (Ending([1, 2, 3], "stop", 3), StopRules(("b",)), ("ab", 3)),
        # only what ends beyond the first min_tokens counts
        (Ending([1, 2, 1, 2], "stop", None), StopRules(("a",), min_tokens=2), ("ab", "a")),
        (Ending([1, 2, 3], "stop", None), StopRules(("ab",), min_tokens=1), ("", "ab")),
        (Ending([1, 2], "stop", None), StopRules(("b",), min_tokens=2), ("ab", None)),
        # a stop string before a stop token
        (Ending([1, 2, 9], "stop", None), StopRules(("b",)), ("a", "b")),
    ],
)
def test_text_is_cut_at_the_stop_string(ending, rules, expected):
    assert output_text(ending, Letters(), rules, EOS) == expected


def test_of_several_stop_strings_the_one_that_ends_first_counts_then_the_order_given():
    assert find_stop("abcd", 4, ["cd", "bc"]) == (1, "bc")
    assert find_stop("abcd", 4, ["bcd", "d"]) == (1, "bcd")
    assert find_stop("abcd", 4, ["d", "bcd"]) == (3, "d")


def test_stop_strings_that_end_in_old_text_are_not_found():
    assert find_stop("abab", 1, ["a"]) is None
    assert find_stop("abab", 1, ["ab"]) == (2, "ab")
    assert find_stop("abab", 0, ["ab"]) is None
