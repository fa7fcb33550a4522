from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError
from tests.render.builders import DATA
from workers.render.prompts import PromptRules, check_rules, take_ids, tokenize
from workers.text.tokenizer import Tokenizer

LLAMA = Tokenizer.from_directory(DATA / "models" / "llama3-render")


def rules(**fields: Any) -> PromptRules:
    defaults = {
        "max_model_len": 100,
        "max_output_tokens": None,
        "output_param": "max_tokens",
        "add_special_tokens": True,
    }
    return PromptRules(**(defaults | fields))


@given(length=st.integers(0, 120), count=st.integers(-1, 100), side=st.sampled_from("lr"))
def test_truncation_keeps_the_asked_end(length: int, count: int, side: str) -> None:
    ids = list(range(length))
    chosen = {"l": "left", "r": "right"}[side]

    kept = take_ids(LLAMA, ids, rules(truncate_to=count, side=chosen)).ids

    most = 99 if count == -1 else count
    assert len(kept) == min(length, most)
    assert kept == (ids[length - len(kept) :] if chosen == "left" else ids[: len(kept)])


def test_the_tokenizers_own_truncation_keeps_its_special_tokens() -> None:
    (whole,) = tokenize(LLAMA, ["one two three four"], rules())

    (cut,) = tokenize(LLAMA, ["one two three four"], rules(truncate_to=3))
    (asked,) = tokenize(LLAMA, ["one two three four"], rules(truncate_to=3, side="left"))

    assert cut.ids == [LLAMA.bos_id, *whole.ids[-2:]]
    assert asked.ids == whole.ids[-3:]


def test_a_bos_of_the_text_is_the_only_one_where_that_is_asked_for() -> None:
    text = LLAMA.special_tokens["bos_token"] + "one two three four"
    (double,) = tokenize(LLAMA, [text], rules())
    (single,) = tokenize(LLAMA, [text], rules(single_bos=True, want_offsets=True))
    (cut,) = tokenize(LLAMA, [text], rules(single_bos=True, truncate_to=3))
    (bare,) = tokenize(LLAMA, ["one"], rules(single_bos=True))

    assert double.ids == [LLAMA.bos_id, *single.ids]
    assert single.ids.count(LLAMA.bos_id) == 1
    assert single.offsets is not None
    assert len(single.offsets) == len(single.ids)
    assert cut.ids == [LLAMA.bos_id, *single.ids[-2:]]
    assert bare.ids[0] == LLAMA.bos_id


def test_a_prompt_that_fits_with_one_bos_fits() -> None:
    text = LLAMA.special_tokens["bos_token"] + "one"
    asked = rules(max_model_len=len(LLAMA.encode(text, add_special_tokens=False)))

    (prompt,) = tokenize(LLAMA, [text], replace(asked, single_bos=True))

    assert prompt.ids[0] == LLAMA.bos_id
    with pytest.raises(ApiError, match="maximum context length"):
        tokenize(LLAMA, [text], asked)


def test_room_is_left_for_output_unless_none_is_wanted() -> None:
    ids = list(range(200))

    assert len(take_ids(LLAMA, ids, rules(truncate_to=-1)).ids) == 99
    assert len(take_ids(LLAMA, ids, rules(truncate_to=-1, max_output_tokens=0)).ids) == 100


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": 101}, "max_tokens"),
        ({"truncate_to": 101}, "truncate_prompt_tokens"),
    ],
)
def test_impossible_wishes_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_rules(rules(**fields))

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("text", "param", "words"),
    [
        ("a b " * 100, "input_tokens", "at least 101 input tokens"),
        ("a" * 100_000, "input_text", "100000 characters"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(text: str, param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        tokenize(LLAMA, [text], rules())

    assert caught.value.param == param


def test_offsets_stay_those_of_the_whole_text() -> None:
    text = "x" * 5000 + " tail"
    given = rules(truncate_to=2, side="left", want_offsets=True, max_model_len=10)

    (prompt,) = tokenize(LLAMA, [text], given)

    assert prompt.offsets is not None
    assert prompt.offsets[-1][1] == len(text)
    assert len(prompt.offsets) == len(prompt.ids) == 2
