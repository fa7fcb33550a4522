"""Counts of a body: before it is parsed, and before it is validated."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import limits
from schemas.errors import ApiError
from schemas.json_size import MAX_DIGITS, is_light, num_values
from schemas.limits import ModelLimits
from schemas.refusals import bad_request
from schemas.routes import Kind
from schemas.validation import decode_json, parse_body

LIMITS = ModelLimits(4096, 1000, ("m",))
USER = {"role": "user", "content": "a"}
PARAMETERS = [
    ("bad_words", ["a"] * 4_097),
    ("logit_bias", dict.fromkeys(map(str, range(16_385)), 1)),
    ("stop", ["a"] * 2_100),
    ("allowed_token_ids", [1] * 262_145),
    ("tools", [{}] * 1_025),
    ("messages", [USER] * 8_193),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "a"}] * 8_193}]),
    ("messages", [{"role": "assistant", "tool_calls": [{}] * 8_193}]),
    ("messages", [USER | {"note": [1] * 262_144}]),
    ("ec_transfer_params", {str(i): [] for i in range(65_537)}),
    ("ec_transfer_params", {"a": [[1] * 1_000] * 132}),
    ("kv_transfer_params", {"a" * (1024 * 1024 + 1): 1}),
    ("chat_template_kwargs", {"a": [1] * 16_384}),
    ("request_id", "a" * 1_025),
    ("model", "a" * 4_097),
    ("structured_outputs.choice", ["a"] * 1_025),
    ("structured_outputs.choice", ["a" * 40_000] * 2),
    ("structured_outputs.regex", "a" * 16_385),
    ("structured_outputs.json", {"enum": ["a" * 300_000]}),
    ("structured_outputs.json", "a" * 300_000),
    ("response_format", {"json_schema": {"schema": {"enum": [1] * 16_384}}}),
]


def body_of(path: str, value: object) -> dict:
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return {"messages": [USER], **value}


@pytest.mark.parametrize(
    ("path", "value"), PARAMETERS, ids=[f"{i}-{path}" for i, (path, _) in enumerate(PARAMETERS)]
)
def test_what_holds_too_much_is_named(path: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(Kind.CHAT, json.dumps(body_of(path, value)).encode(), LIMITS)

    assert (caught.value.status, caught.value.param) == (400, path)
    assert "at most" in caught.value.message


def test_sampling_parameters_of_generate_are_bounded_alike() -> None:
    params = {"structured_outputs": {"choice": ["a"] * 1_025}}
    body = {"token_ids": [1], "sampling_params": params}

    with pytest.raises(ApiError) as caught:
        parse_body(Kind.GENERATE, json.dumps(body).encode(), LIMITS)

    assert caught.value.param == "sampling_params.structured_outputs.choice"


def test_what_is_asked_in_earnest_passes() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "a" * 100}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {
        "messages": [USER] * 1_000 + [{"role": "user", "content": [picture] * 1_000}],
        "tools": [tool] * 128,
        "allowed_token_ids": list(range(10_000)),
        "stop_token_ids": list(range(10_000)),
        "logit_bias": dict.fromkeys(map(str, range(10_000)), 1),
        "ec_transfer_params": {"h" * 64 + str(i): {"peer_host": "a"} for i in range(1_000)},
        "chat_template_kwargs": {"enable_thinking": False},
    }

    assert parse_body(Kind.CHAT, json.dumps(body).encode(), LIMITS)


def test_unknown_parameters_are_counted() -> None:
    with pytest.raises(ApiError, match="parameters"):
        parse_body(Kind.CHAT, json.dumps({f"k{i}": 0 for i in range(1_025)}).encode(), LIMITS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32-le"])
def test_values_are_counted_before_parsing(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.validation.MAX_VALUES", 5_000)
    few = json.dumps({"a": [0] * 4_990}).encode(encoding)
    many = json.dumps({"a": [0] * 5_010}).encode(encoding)

    assert decode_json(few)
    with pytest.raises(ApiError, match="5000 JSON values"):
        decode_json(many)


def test_a_text_that_spells_json_has_one_value() -> None:
    raw = json.dumps(["[{,\\\"'" * 300_000, '"' * 300_000]).encode()

    assert not is_light(raw)
    assert num_values(raw, limits.MAX_VALUES) == 3
    assert decode_json(raw)


def test_long_numbers_are_refused_where_there_are_many() -> None:
    fine = b"[" + b"1," * 3_000 + b"9" * MAX_DIGITS + b"]"

    assert decode_json(fine)
    with pytest.raises(ApiError, match="digits"):
        decode_json(fine.replace(b"9]", b"99]"))


def count(value: object) -> int:
    """Values, and one more for each container that is empty."""
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return 1 + sum(map(count, children)) + (not value)
    return 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}:,"\\u0aé\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[],"\\'), inner),
)


@given(JSON_VALUES, st.booleans(), st.integers(1, 9))
def test_values_are_counted_as_parsed(value: object, ascii_only: bool, window: int) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schemas.json_size._WINDOW", window)
        assert num_values(raw, limits.MAX_VALUES) == count(value)


def test_a_heavy_body_tells_the_first_bad_entry_of_a_list() -> None:
    body = {"messages": [USER], "stop_token_ids": ["x"] * 3_000}

    with pytest.raises(ApiError) as caught:
        parse_body(Kind.CHAT, json.dumps(body).encode(), LIMITS)

    assert caught.value.message.startswith("1 validation error:")
    assert caught.value.param == "body.stop_token_ids.0"


def test_the_right_message_is_named_among_many() -> None:
    body = {"messages": [USER] * 3_000 + [{"content": "no role"}]}

    with pytest.raises(ApiError) as caught:
        parse_body(Kind.CHAT, json.dumps(body).encode(), LIMITS)

    assert str(caught.value.param).startswith("body.messages.3000.")


def test_a_refusal_repeats_little_of_what_is_refused() -> None:
    body = {"messages": [USER], "n": {"/a" * 300_000: 1}, "priority": "/a" * 300_000}

    with pytest.raises(ApiError) as caught:
        parse_body(Kind.CHAT, json.dumps(body).encode(), LIMITS)

    assert len(caught.value.message) < 3_000


def test_a_long_value_in_a_refusal_is_cut() -> None:
    error = bad_request("no", "seed", ["/a" * 300_000])

    assert len(error.message) < 3_000
