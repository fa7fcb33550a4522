import json
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderChatStreamResponse,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderCompletionStreamResponse,
    StreamState,
)
from schemas.derender_checks import check_derender
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.responses import ChatCompletionResponse, CompletionResponse
from schemas.routes import Kind
from schemas.validation import validated
from tests.schemas.recorded import answers

LIMITS = ModelLimits(
    max_model_len=8, vocab_size=50, served_names=("m",), max_logprobs=2, max_n_sequences=2
)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def choice(**changes: Any) -> dict[str, Any]:
    return {"index": 0, "token_ids": [5], **changes}


def response(*choices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"request_id": "r", "choices": list(choices) or [choice()], **changes}


def scored(positions: int, candidates: int) -> dict[str, Any]:
    entry = {"token_id": 1, "logprob": -1.0}
    return {"content": [entry | {"top_logprobs": [entry] * candidates}] * positions}


def refusal(kind: Kind, body: dict[str, Any], *, has_parser: bool = False) -> str:
    request: Any = validated(kind, body, LIMITS)
    with pytest.raises(ApiError) as caught:
        check_derender(request, LIMITS, has_parser=has_parser)
    assert (caught.value.status, caught.value.type) == (400, "BadRequestError")
    return caught.value.message


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            response(choice(), choice(), choice()),
            "choices count (3) in response 'r' exceeds server maximum (2).",
        ),
        (
            response(choice(token_ids=[1] * 9)),
            "token_ids length (9) in choice 0 exceeds max_model_len (8).",
        ),
        (
            response(choice(logprobs=scored(9, 0))),
            "logprobs.content length (9) in choice 0 exceeds max_model_len (8).",
        ),
        (
            response(choice(logprobs=scored(1, 3))),
            "top_logprobs count (3) in choice 0 exceeds max_logprobs (2).",
        ),
        (
            response(prompt_logprobs=[None] * 9),
            "prompt_logprobs length (9) in response 'r' exceeds max_model_len (8).",
        ),
        (response(choice(token_ids=None)), "choice 0 has empty or null token_ids"),
        (response(choice(token_ids=[])), "choice 0 has empty or null token_ids"),
    ],
)
def test_whole_chat_answers_are_bounded(answer: dict[str, Any], message: str) -> None:
    assert refusal(Kind.CHAT_DERENDER, {"generate_response": answer}) == message


def test_a_prompt_is_bounded_too() -> None:
    body = {"generate_response": response(), "prompt_token_ids": [1] * 9}
    assert (
        refusal(Kind.CHAT_DERENDER, body)
        == "prompt_token_ids length (9) exceeds max_model_len (8)."
    )


def test_a_parser_needs_the_chat_and_a_stream_its_prompt() -> None:
    whole = {"generate_response": response()}
    assert "chat_request is required" in refusal(Kind.CHAT_DERENDER, whole, has_parser=True)
    chunk = {"stream": True, "generate_chunk": response()}
    assert "chat_request is required" in refusal(Kind.CHAT_DERENDER, chunk, has_parser=True)
    chunk["chat_request"] = CHAT
    assert "prompt_token_ids is required" in refusal(Kind.CHAT_DERENDER, chunk, has_parser=True)


def test_a_chunk_holds_one_choice_at_most() -> None:
    chunk = {"stream": True, "generate_chunk": response(choice(), choice())}
    assert refusal(Kind.CHAT_DERENDER, chunk) == (
        "derender_chat_stream expects at most one choice per chunk (got 2)."
    )
    assert refusal(Kind.COMPLETION_DERENDER, chunk) == (
        "derender_completion_stream expects at most one choice per chunk"
    )


def test_a_chat_stream_is_bounded_as_a_whole() -> None:
    state = {"output_token_ids": [1, 2, 3], "output_chunk_lens": [3]}
    body = {
        "stream": True,
        "generate_chunk": response(choice(token_ids=[1, 2])),
        "stream_state": state,
        "prompt_token_ids": [1, 2, 3, 4],
    }
    assert refusal(Kind.CHAT_DERENDER, body) == (
        "prompt_token_ids length (4) plus output_token_ids length (3) plus delta (2) "
        "exceeds max_model_len (8)."
    )


def test_stop_strings_cannot_be_streamed() -> None:
    for kind, name, request in (
        (Kind.CHAT_DERENDER, "chat_request", CHAT),
        (Kind.COMPLETION_DERENDER, "completion_request", {"prompt": "a"}),
    ):
        body = {"stream": True, "generate_chunk": response(), name: {**request, "stop": "x"}}
        assert "stop strings are not supported by streaming derender" in refusal(kind, body)


def test_completions_need_a_response_with_tokens_each() -> None:
    assert refusal(Kind.COMPLETION_DERENDER, {"generate_responses": []}) == (
        "generate_responses must not be empty"
    )
    body = {"generate_responses": [response(), response(choice(token_ids=[]))]}
    assert refusal(Kind.COMPLETION_DERENDER, body) == (
        "choice 0 in response r has empty or null token_ids"
    )
    many = {"generate_responses": [response()] * 3}
    assert "generate_responses count (3) exceeds server maximum (2)" in refusal(
        Kind.COMPLETION_DERENDER, many
    )


def test_an_answer_without_choices_is_fine() -> None:
    request = DerenderChatRequest.model_validate(
        {"generate_response": {"request_id": "r", "choices": []}, "chat_request": CHAT}
    )
    check_derender(request, LIMITS, has_parser=True)


def test_the_form_follows_stream() -> None:
    whole = validated(Kind.CHAT_DERENDER, {"generate_response": response()}, LIMITS)
    chunk = validated(Kind.CHAT_DERENDER, {"stream": True, "generate_chunk": response()}, LIMITS)
    assert isinstance(whole, DerenderChatRequest)
    assert isinstance(chunk, DerenderChatStreamRequest)
    texts = validated(Kind.COMPLETION_DERENDER, {"generate_responses": []}, LIMITS)
    text = validated(
        Kind.COMPLETION_DERENDER, {"stream": True, "generate_chunk": response()}, LIMITS
    )
    assert isinstance(texts, DerenderCompletionRequest)
    assert isinstance(text, DerenderCompletionStreamRequest)


@pytest.mark.parametrize(
    "state",
    [
        {"prev_tokens": ["x"] * 1025},
        {"prefix_offset": -1},
        {"logprob_context_token_ids": [1] * 5},
        {"output_token_ids": [1], "output_chunk_lens": []},
        {"output_token_ids": [1], "output_chunk_lens": [2]},
        {"output_token_ids": [], "output_chunk_lens": [0]},
    ],
)
def test_a_stream_state_is_bounded(state: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StreamState.model_validate(state)


@pytest.mark.parametrize(
    ("group", "model"),
    [
        ("chat_derender", ChatCompletionResponse),
        ("completion_derender", CompletionResponse),
        ("chat_stream", DerenderChatStreamResponse),
        ("completion_stream", DerenderCompletionStreamResponse),
    ],
)
def test_recorded_answers_are_written_back_key_by_key(group: str, model: Any) -> None:
    for answer in answers()[group]:
        again = json.loads(model.model_validate(answer).model_dump_json())
        assert json.dumps(again) == json.dumps(answer)
