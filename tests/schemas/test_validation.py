import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.refusals import UNSUPPORTED_MEDIA_TYPE, UnreadableBody, bad_request
from schemas.routes import Kind
from schemas.validation import MAX_NESTING, decode_json, parse_body

LIMITS = ModelLimits(max_model_len=4096, vocab_size=2048, served_names=("m", "alias"))


def refusal(kind: Kind, raw: bytes | dict[str, object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_body(kind, raw if isinstance(raw, bytes) else json.dumps(raw).encode(), LIMITS)
    return caught.value


@pytest.mark.parametrize("raw", [b"", b"null"])
def test_no_body_at_all_is_a_missing_field(raw: bytes) -> None:
    error = refusal(Kind.CHAT_RENDER, raw)
    assert (error.status, error.type, error.param) == (400, "Bad Request", "body")
    assert "Field required" in error.message


@pytest.mark.parametrize(
    ("raw", "param"), [(b'{"a": ', "body.6"), (b"{'a'}", "body.1"), (b"1 2", "body.2")]
)
def test_invalid_json_names_the_offset(raw: bytes, param: str) -> None:
    error = refusal(Kind.GENERATE, raw)
    assert (error.type, error.param) == ("Bad Request", param)


@pytest.mark.parametrize("raw", [b'"\xff"', b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_undecodable_bytes_have_no_envelope(raw: bytes) -> None:
    with pytest.raises(UnreadableBody) as caught:
        decode_json(raw)
    assert caught.value.body() == {"detail": "There was an error parsing the body"}


def test_nesting_is_bounded_before_any_encoder_gives_up() -> None:
    assert decode_json(b"[" * MAX_NESTING + b"]" * MAX_NESTING)
    with pytest.raises(UnreadableBody):
        decode_json(b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1))


def test_lenient_json_passes() -> None:
    assert decode_json(b'{"a": NaN, "a": Infinity}') == {"a": float("inf")}


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (rb'{"stop": ["x", "\ud83d"]}', "stop.1"),
        (rb'{"bad_words": ["\udc00"]}', "bad_words.0"),
        (rb'{"metadata": {"a": {"\ud800k": 1}}}', r"metadata.a.\ud800k"),
        (b'{"user": "\xed\xa0\x80"}', "user"),
        (rb'{"messages": [{"content": "\ud800"}]}', None),
    ],
)
def test_lone_surrogates_are_refused_wherever_they_are(raw: bytes, param: str | None) -> None:
    with pytest.raises(ApiError, match="surrogates") as caught:
        decode_json(raw)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_pairs_of_surrogates_and_control_characters_are_text() -> None:
    assert decode_json(rb'["\ud83d\ude00", "\u0000"]') == ["\U0001f600", "\0"]


JSON_LIKE = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.text('[]{}:,"\\u0dD8e+-.019 \n', max_size=12).map(str.encode),
    st.from_regex(rb"-?[0-9]{1,40}(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


@given(JSON_LIKE)
def test_a_body_has_the_value_that_the_standard_library_reads(raw: bytes) -> None:
    try:
        expected = json.loads(raw)
    except ValueError:
        with pytest.raises((ApiError, UnreadableBody)):
            decode_json(raw)
    else:
        if not _is_unicode(expected):
            with pytest.raises(ApiError):
                decode_json(raw)
            return
        assert repr(decode_json(raw)) == repr(expected)


def _is_unicode(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def test_a_nan_in_a_body_never_reaches_the_error_body_as_a_number() -> None:
    error = refusal(Kind.GENERATE, b'{"token_ids":[1],"sampling_params":{"temperature":NaN}}')
    assert error.param == "temperature"
    json.loads(json.dumps(error.body(), allow_nan=False))


def test_at_most_ten_errors_are_spelled_out() -> None:
    error = refusal(Kind.CHAT_RENDER, {"messages": [{}]})
    lines = error.message.splitlines()
    assert len(lines) <= 12
    many = refusal(Kind.CHAT_RENDER, {"messages": [], "bad_words": [1] * 50})
    assert many.message.startswith("50 validation errors:")
    assert many.message.endswith("...and 40 more errors")


def test_an_error_repeats_no_more_than_a_bit_of_its_input() -> None:
    error = refusal(Kind.COMPLETION_RENDER, {"prompt": "a", "priority": "x" * 10_000})
    assert len(error.message) < 1200


def test_a_million_bad_entries_cost_one_error() -> None:
    error = refusal(Kind.GENERATE, {"token_ids": ["a"] * 100_000, "sampling_params": {}})
    assert error.message.startswith("1 validation error:")


@pytest.mark.parametrize("stream", [None, 1, "true", []])
def test_derender_refuses_a_stream_that_is_no_boolean_with_both_forms_errors(
    stream: object,
) -> None:
    error = refusal(Kind.CHAT_DERENDER, {"stream": stream, "generate_response": {"choices": []}})
    assert error.param == "body.DerenderChatRequest.stream"
    assert "DerenderChatStreamRequest" in error.message


def test_the_number_of_stop_strings_and_prompts_follows_the_limits() -> None:
    five = {"messages": [], "stop": ["a", "b", "c", "d", "e"]}
    assert refusal(Kind.CHAT_RENDER, five).param == "body.stop"
    tight = ModelLimits(10, 10, ("m",), max_completion_prompts=1, max_stop_strings=5)
    assert parse_body(Kind.CHAT_RENDER, json.dumps(five).encode(), tight)
    with pytest.raises(ApiError, match="VLLM_MAX_COMPLETION_PROMPTS"):
        parse_body(Kind.COMPLETION_RENDER, b'{"prompt": ["a", "b"]}', tight)


def test_media_type_error_has_no_param() -> None:
    body = UNSUPPORTED_MEDIA_TYPE().body()["error"]
    assert body["type"] == "Bad Request"
    assert body["param"] is None


def test_a_refusal_repeats_parameter_and_value_and_hides_paths() -> None:
    error = bad_request("no /tmp/secret/file at all", "seed", 7)
    assert error.message == "no <path> at all (parameter=seed, value=7)"
    assert error.param == "seed"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "prompt",
        "token_ids",
        "sampling_params",
        "features",
        "stream",
        "generate_response",
        "generate_chunk",
        "stream_state",
        "tools",
        "tool_choice",
        "stop",
        "logit_bias",
        "response_format",
        "input",
        "model",
        "tokens",
    ]
)


@given(st.sampled_from(Kind), st.dictionaries(FIELDS, JSON, max_size=5))
def test_any_json_object_is_validated_or_refused(kind: Kind, body: dict[str, object]) -> None:
    error = outcome(kind, json.dumps(body).encode())
    assert error is None or 400 <= error.status < 500


@given(st.sampled_from(Kind), st.binary(max_size=40))
def test_any_bytes_are_validated_or_refused(kind: Kind, raw: bytes) -> None:
    error = outcome(kind, raw)
    assert error is None or error.status == 400


def outcome(kind: Kind, raw: bytes) -> ApiError | None:
    try:
        parse_body(kind, raw, LIMITS)
    except ApiError as error:
        json.dumps(error.body(), allow_nan=False)
        return error
    return None
