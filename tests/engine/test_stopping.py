import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.models.engine.sampling import Repetition, Sampling
from workers.models.engine.stopping import Stopped, StopRules, find_stop, repeats
from workers.models.engine.text import GrowingText


def rules(*, max_tokens=10, eos=2, more=(), **sampling):
    return StopRules.of(
        Sampling.of_wire(sampling), max_tokens=max_tokens, eos_token_id=eos, more_eos_ids=more
    )


def test_eos_stops_without_a_reason():
    assert rules().check([5, 2]) == Stopped("stop", None, by_token=True)


def test_eos_is_an_ordinary_token_when_it_is_to_be_ignored():
    assert rules(ignore_eos=True, more=[3]).check([5, 2]) is None
    assert rules(ignore_eos=True, more=[3]).check([5, 3]) is None


def test_stop_token_is_told_as_the_reason():
    assert rules(stop_token_ids=[7]).check([7]) == Stopped("stop", 7, by_token=True)


def test_other_eos_of_the_generation_config_is_told_as_the_reason():
    assert rules(more=[3]).check([3]) == Stopped("stop", 3, by_token=True)


def test_length_is_looked_at_after_stop_tokens():
    assert rules(max_tokens=1).check([2]).finish_reason == "stop"
    assert rules(max_tokens=1).check([9]) == Stopped("length")


def test_every_stop_token_is_held_back_until_the_minimum_even_with_ignored_eos():
    early = rules(ignore_eos=True, stop_token_ids=[7], more=[3]).never_early

    assert early == {2, 3, 7}


def test_repetition_ends_a_choice_only_after_the_minimum():
    detection = {"max_pattern_size": 2, "min_count": 3}

    tokens = [1, 4, 1, 4, 1, 4]

    assert rules(repetition_detection=detection).check(tokens).finish_reason == "repetition"
    assert rules(repetition_detection=detection, min_tokens=7).check(tokens) is None


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(1, 3), st.integers(2, 4))
def test_repeats_agrees_with_comparing_every_repetition(tokens, size, count):
    rule = Repetition(max_pattern_size=size, min_pattern_size=size, min_count=count)

    tail = tokens[-size * count :]
    pieces = [tail[i : i + size] for i in range(0, len(tail), size)]
    expected = len(tokens) >= size * count and all(piece == pieces[0] for piece in pieces)

    assert repeats(tokens, rule) == expected


def test_the_stop_string_that_completes_first_wins_and_ties_go_by_order():
    assert find_stop("xabcd", ["bcd", "ab"], search_from=0).stop == "ab"
    assert find_stop("xabc", ["bc", "abc"], search_from=0).stop == "bc"


def test_a_stop_string_may_begin_in_text_that_was_searched_before():
    assert find_stop("hello wor", ["lo wor"], search_from=6) == ("lo wor", 3, 9)
    assert find_stop("stop and go", ["stop"], search_from=5) is None


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_growing_text_is_cut_at_the_first_stop_string_however_it_arrives(text, stops):
    growing = GrowingText(lambda token: text[token], stops=stops, min_tokens=0, keeps_stop=False)

    found = next((hit for i in range(len(text)) if (hit := growing.push(i, is_hidden=False))), None)

    ends = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert (found, growing.text) == (None, text)
    else:
        end = min(end for end, _ in ends)
        assert found in [stop for at, stop in ends if at == end]
        assert growing.text == text[: end - len(found)]


@pytest.mark.parametrize(("keeps", "text"), [(True, "a stop"), (False, "a ")])
def test_the_stop_string_itself_is_kept_only_when_asked_for(keeps, text):
    pieces = ["a ", "st", "op it"]
    growing = GrowingText(pieces.__getitem__, stops=["stop"], min_tokens=0, keeps_stop=keeps)

    hits = [growing.push(i, is_hidden=False) for i in range(3)]

    assert hits == [None, None, "stop"]
    assert growing.text == text


def test_text_of_the_minimum_tokens_is_never_searched():
    pieces = ["stop", " x", " stop"]
    growing = GrowingText(pieces.__getitem__, stops=["stop"], min_tokens=1, keeps_stop=False)

    assert [growing.push(i, is_hidden=False) for i in range(3)] == [None, None, "stop"]


def test_a_hidden_token_adds_no_text():
    growing = GrowingText(lambda _: "</s>", stops=[], min_tokens=0, keeps_stop=False)

    growing.push(2, is_hidden=True)

    assert growing.text == ""
