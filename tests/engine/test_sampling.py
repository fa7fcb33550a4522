import pytest

from workers.models.engine.sampling import Repetition, Sampling


def test_absent_keys_are_defaults():
    assert Sampling.of_wire({}) == Sampling()


def test_greedy_ignores_what_shapes_a_distribution():
    sampling = Sampling.of_wire({"temperature": 1e-6, "top_p": 0.5, "top_k": 3, "min_p": 0.1})

    assert sampling.is_greedy
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)


def test_a_temperature_close_to_zero_is_raised():
    assert Sampling.of_wire({"temperature": 0.001}).temperature == 0.01


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (5, 5)])
def test_top_k_of_minus_one_and_zero_mean_off(top_k, expected):
    assert Sampling.of_wire({"top_k": top_k}).top_k == expected


def test_forms_are_unified():
    sampling = Sampling.of_wire(
        {
            "stop": "x",
            "seed": -1,
            "logit_bias": {"3": 250.0, "4": -250},
            "repetition_detection": {"max_pattern_size": 2, "min_count": 3},
            "structured_outputs": {"choice": ["a", "b"], "json": None},
            "prompt_logprobs": None,
        }
    )

    assert sampling.stop == ("x",)
    assert sampling.seed is None
    assert sampling.logit_bias == {3: 100.0, 4: -100.0}
    assert sampling.repetition == Repetition(2, 1, 3)
    assert sampling.structured == {"choice": ["a", "b"], "json": None}
    assert sampling.prompt_logprobs is None


def test_repetition_detection_of_size_zero_is_off():
    assert Sampling.of_wire({"repetition_detection": {"max_pattern_size": 0}}).repetition is None
