import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.sampling import DELTA, FINAL_ONLY, SamplingParams, StructuredOutputs, token_bias
from schemas.sampling_limits import check_sampling
from tests.schemas.recorded import sampling_params

LIMITS = ModelLimits(max_model_len=100, vocab_size=50, served_names=("m",), max_logprobs=20)
RECORDED = sampling_params()


@pytest.mark.parametrize("wire", RECORDED, ids=lambda wire: f"{len(wire)} keys")
def test_the_wire_form_is_the_recorded_one_key_by_key(wire: dict[str, object]) -> None:
    again = SamplingParams.model_validate(wire).to_wire()
    assert again == wire
    assert list(again) == list(wire)


def test_what_the_caller_gave_is_remembered_through_normalisation() -> None:
    params = SamplingParams(temperature=0, seed=-1, stop="a")
    assert params.model_fields_set == {"temperature", "seed", "stop"}
    assert not params.gave("max_tokens")
    assert SamplingParams(max_tokens=16).gave("max_tokens")


def test_values_are_normalised() -> None:
    params = SamplingParams(
        temperature=0.001,
        seed=-1,
        stop="end",
        stop_token_ids=[3, 3, 1],
        bad_words=["b", "b"],
        logit_bias={1: 500.0, 2: -500.0},
        thinking_token_budget=-1,
    )
    assert params.temperature == 0.01
    assert params.seed is None
    assert params.stop_strings == ["end"]
    assert params.output_text_buffer_length == 2
    assert params.stop_token_ids == [3, 1]
    assert params.bad_words == ["b"]
    assert params.logit_bias == {1: 100.0, 2: -100.0}
    assert params.thinking_token_budget is None


def test_greedy_resets_what_it_does_not_use() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=7, min_p=0.1)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    assert params.is_greedy
    wire = params.to_wire()
    assert not {"top_p", "top_k", "min_p"} & wire.keys()


def test_prompt_logprobs_keep_the_prefix_cache_unread() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert SamplingParams().skip_reading_prefix_cache is False


def test_structured_outputs_travel_with_all_their_keys() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(choice=["a"]))
    assert params.to_wire()["structured_outputs"] == {
        "json": None,
        "regex": None,
        "choice": ["a"],
        "grammar": None,
        "json_object": None,
        "disable_any_whitespace": False,
        "disable_additional_properties": False,
        "whitespace_pattern": None,
        "structural_tag": None,
        "_backend": None,
        "_backend_was_auto": False,
    }


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    schema: dict[str, object] = {}
    for _ in range(70):
        schema = {"items": schema}
    with pytest.raises(ApiError, match="nested too deeply"):
        StructuredOutputs.model_validate({"json": schema})


@pytest.mark.parametrize(
    ("given_values", "message", "param"),
    [
        ({"n": 0}, "n must be at least 1, got 0.", None),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2.", None),
        ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3.0.", None),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0.0.", None),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2.", None),
        ({"min_p": 2}, "min_p must be in [0, 1], got 2.0.", None),
        (
            {"min_tokens": 20},
            "min_tokens must be less than or equal to max_tokens=16, got 20.",
            None,
        ),
        ({"stop": [""]}, "stop cannot contain an empty string.", None),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)", "top_p"),
        (
            {"logprobs": -2},
            "logprobs must be non-negative or -1, got -2. (parameter=logprobs, value=-2)",
            "logprobs",
        ),
        (
            {"extra_args": {"a": [2**64]}},
            "extra_args integers must be between -2**63 and 2**64 - 1. (parameter=extra_args)",
            "extra_args",
        ),
    ],
)
def test_values_out_of_range_are_refused_in_known_words(
    given_values: dict[str, object], message: str, param: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        SamplingParams.model_validate(given_values)
    assert caught.value.message == message
    assert caught.value.param == param


def test_a_bias_key_that_is_no_id_is_named() -> None:
    with pytest.raises(ApiError, match=r"\['a'\]"):
        token_bias({"a": 1.0, "3": 1.0})
    assert token_bias({"3": 1.0}) == {3: 1.0}
    assert token_bias(None) is None


@pytest.mark.parametrize(
    ("given_values", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"logprob_token_ids": [50]}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": 3}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids"),
        ({"logit_bias": {50: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [50]}, "allowed_token_ids"),
        ({"prompt_logprob_start": 1}, "prompt_logprob_start"),
        ({"prompt_logprob_token_ids": [[]]}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[50]]}, "prompt_logprob_token_ids"),
    ],
)
def test_ids_and_counts_beyond_the_model_are_refused(
    given_values: dict[str, object], param: str
) -> None:
    params = SamplingParams.model_validate(given_values)
    with pytest.raises(ApiError) as caught:
        check_sampling(params, LIMITS)
    assert caught.value.param == param


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.01, 2) | st.just(0.0),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 50),
        "min_p": st.floats(0, 1),
        "seed": st.integers(-1, 2**63 - 1) | st.none(),
        "stop": st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=3) | st.none(),
        "max_tokens": st.integers(1, 100) | st.none(),
        "logit_bias": st.dictionaries(st.integers(0, 49), st.floats(-200, 200)),
        "logprobs": st.integers(0, 20) | st.none(),
        "ignore_eos": st.booleans(),
        "output_kind": st.sampled_from([DELTA, FINAL_ONLY]),
        "skip_special_tokens": st.booleans(),
    },
)


@given(PARAMS)
def test_the_wire_form_means_the_same_parameters(values: dict[str, object]) -> None:
    params = SamplingParams.model_validate(values)
    wire = params.to_wire()
    again = SamplingParams.model_validate(wire)
    assert again.to_wire() == wire
    assert again.__dict__ == params.__dict__
