import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from schemas.checks import check_request
from schemas.errors import ApiError
from schemas.features import MultiModalFeatures, PlaceholderRange, check_disjoint
from schemas.generate import AnyGenerateResponse, GenerateBody, GenerateRequest
from schemas.limits import ModelLimits
from schemas.routes import Kind
from tests.schemas.recorded import answers

LIMITS = ModelLimits(max_model_len=10, vocab_size=50, served_names=("m", "n"), max_num_seqs=4)


def features(**changes: Any) -> dict[str, Any]:
    return {
        "mm_hashes": {"image": ["a", "b"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 2}, {"offset": 3, "length": 1}]},
        **changes,
    }


def body(**changes: Any) -> dict[str, Any]:
    return {"token_ids": [1, 2, 3, 4], "sampling_params": {}, **changes}


def complaint(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        GenerateBody.model_validate(body(**changes))
    return caught.value.errors()[0]["msg"].removeprefix("Value error, ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mm_placeholders": {"video": []}},
            "mm_hashes and mm_placeholders must use the same modalities",
        ),
        ({"kwargs_data": {}}, "kwargs_data must use the same modalities as mm_hashes"),
        ({"mm_metadata": {"video": []}}, "mm_metadata must use the same modalities as mm_hashes"),
        (
            {"mm_hashes": {"image": ["a"]}},
            "image mm_hashes and mm_placeholders must have the same length",
        ),
        (
            {"kwargs_data": {"image": ["x"]}},
            "image kwargs_data and mm_hashes must have the same length",
        ),
        (
            {"mm_metadata": {"image": []}},
            "image mm_metadata and mm_hashes must have the same length",
        ),
        (
            {
                "mm_placeholders": {
                    "image": [{"offset": 1, "length": 2}, {"offset": 2, "length": 1}]
                }
            },
            "mm_placeholders must be globally non-overlapping and sorted",
        ),
    ],
)
def test_the_four_maps_must_run_in_parallel(changes: dict[str, Any], message: str) -> None:
    assert complaint(features=features(**changes)) == message


def test_ranges_must_lie_inside_the_prompt() -> None:
    outside = {"image": [{"offset": 0, "length": 1}, {"offset": 3, "length": 2}]}
    text = complaint(features=features(mm_placeholders=outside), ec_transfer_params={"a": {}})
    assert text == "mm_placeholders must remain within the token_ids sequence"


def test_ranges_may_come_in_any_order() -> None:
    swapped = {"image": [{"offset": 3, "length": 1}, {"offset": 0, "length": 2}]}
    parsed = MultiModalFeatures.model_validate(features(mm_placeholders=swapped))
    assert [r.offset for r in parsed.ranges()] == [0, 3]
    assert [item.placeholder.offset for item in parsed.items()] == [3, 0]


# (kwargs, metadata, transfer parameters) of one item: accepted?
K, M, E = "AAAA", "BBBB", {"ec_items": [{"mm_hash": "a", "peer_host": "10.0.0.1"}]}
PAYLOADS = [
    (K, None, None, True),
    (K, M, None, True),
    (K, M, E, True),
    (None, M, E, True),
    (None, None, E, True),
    (None, M, None, False),
    (None, None, None, False),
    (None, M, {}, False),
    (None, M, [], False),
]


@pytest.mark.parametrize(("kwargs", "metadata", "params", "accepted"), PAYLOADS)
def test_every_item_must_bring_what_its_embedding_comes_from(
    kwargs: str | None, metadata: str | None, params: Any, accepted: bool
) -> None:
    given_body = body(
        features=features(
            kwargs_data={"image": [K, kwargs]}, mm_metadata={"image": [None, metadata]}
        ),
        ec_transfer_params=params,
    )
    if accepted:
        GenerateBody.model_validate(given_body)
        return
    with pytest.raises(ValidationError, match="require ec_transfer_params"):
        GenerateBody.model_validate(given_body)


def test_inside_the_fleet_payloads_travel_apart_from_the_request() -> None:
    assert GenerateRequest.model_validate(body(features=features())).features is not None


@pytest.mark.parametrize("mm_hash", ["../x", "a/b", ".hidden", "", "a\\b", "x" * 201, "a\0b"])
def test_a_hash_must_not_be_able_to_name_a_path(mm_hash: str) -> None:
    named = features(mm_hashes={"image": ["a", mm_hash]}, kwargs_data={"image": [K, K]})
    assert "plain tokens" in complaint(features=named)


def test_content_parts_and_features_exclude_each_other() -> None:
    text = complaint(features=features(kwargs_data={"image": [K, K]}), content_parts=[{}])
    assert text == "content_parts and features are mutually exclusive"


def test_text_output_needs_detokenization() -> None:
    text = complaint(output_mode="text", sampling_params={"detokenize": False})
    assert text == "output_mode='text' requires sampling_params.detokenize to be true"


def test_unknown_parse_context_fields_matter_in_derender_mode_only() -> None:
    GenerateBody.model_validate(body(parse_context={"newer": 1}))
    assert "newer" in complaint(parse_context={"newer": 1}, output_mode="derender")


def test_a_rendered_request_is_accepted_whole_and_written_back_alike() -> None:
    for rendered in answers()["render"]:
        again = json.loads(json.dumps(GenerateRequest.model_validate(rendered).to_wire()))
        assert json.dumps(again) == json.dumps(rendered)


def test_recorded_answers_are_written_back_alike() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(AnyGenerateResponse)
    for answer in answers()["generate"]:
        assert adapter.validate_python(answer).model_dump_json() == json.dumps(
            answer, separators=(",", ":"), ensure_ascii=False
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_params": {"n": 5}}, "max_num_seqs (4), got 5"),
        ({"token_ids": [1] * 11}, "Input length (11) exceeds model's maximum context length (10)."),
        (
            {"token_ids": [1] * 11, "sampling_params": {"max_tokens": 1}},
            "is longer than the maximum model length of 10",
        ),
        ({"token_ids": [1] * 10}, "plus the number of requested output tokens (at least 1)"),
        ({"token_ids": [50]}, "Token id 50 is out of vocabulary"),
        ({"kv_transfer_params": {"a": 2**65}}, "transfer parameters cannot be passed on"),
        (
            {"stream": True, "sampling_params": {"prompt_logprob_token_ids": [[1]]}},
            "not available when stream=true",
        ),
        ({"stream": True, "output_mode": "derender"}, "does not support stream=true"),
    ],
)
def test_a_deployment_bounds_what_is_asked_of_it(changes: dict[str, Any], message: str) -> None:
    request = GenerateBody.model_validate(body(**changes))
    with pytest.raises(ApiError) as caught:
        check_request(Kind.GENERATE, request, LIMITS)
    assert message in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize("name", [None, "", "m", "n"])
def test_served_names_are_accepted(name: str | None) -> None:
    check_request(Kind.GENERATE, GenerateBody.model_validate(body(model=name)), LIMITS)


def test_other_names_are_not_found() -> None:
    with pytest.raises(ApiError) as caught:
        check_request(Kind.GENERATE, GenerateBody.model_validate(body(model="zzz")), LIMITS)
    assert caught.value.body()["error"] == {
        "message": "The model `zzz` does not exist. Valid aliases: m, n.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


RANGES = st.lists(
    st.builds(PlaceholderRange, offset=st.integers(0, 20), length=st.integers(1, 6)), max_size=6
)


@given(RANGES)
def test_ranges_are_disjoint_exactly_when_no_token_belongs_to_two(
    ranges: list[PlaceholderRange],
) -> None:
    tokens = [t for r in ranges for t in range(r.offset, r.end)]
    ordered = sorted(ranges, key=lambda r: (r.offset, r.length))
    if len(tokens) == len(set(tokens)):
        check_disjoint(ordered)
        return
    with pytest.raises(ValueError, match="non-overlapping"):
        check_disjoint(ordered)
