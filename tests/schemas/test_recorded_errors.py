"""What vLLM answered to odd bodies, and what we answer: status, type and param must be equal."""

import pytest
from pydantic import BaseModel

from schemas.chat import ChatCompletionRequest
from schemas.checks import check_request
from schemas.completion import CompletionRequest
from schemas.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
)
from schemas.derender_checks import check_derender
from schemas.errors import ApiError
from schemas.generate import GenerateRequest
from schemas.messages import check_parts
from schemas.mm_item import item_bytes
from schemas.refusals import UnreadableBody
from schemas.sampling import SamplingParams, token_bias
from schemas.sampling_limits import check_sampling
from schemas.validation import parse_body
from tests.schemas.recorded import Case, cases
from workers.render.completions import check_prompts

CASES = {case.id: case for case in cases()}
OURS = {
    # The seed rejects an item that brings nothing; vLLM looks into its cache and fails.
    "g-no-payload-unseen-hash",
}
WORDED_OTHERWISE = {
    "cmpl-mixed-list",  # long lists stop at their first bad entry: fewer errors are counted
    "cmpl-negative-id",
    "content-null-user",  # vLLM counts one more form of message
    "content-number",
    "message-not-object",
    "missing-role",
    "content-part-unknown-type",  # cut
    "g-output-mode-invalid",  # a mode more than 0.32 has
    "g-kwargs-empty-string",  # another decoder's words
    "g-kwargs-garbage-base64",
    "g-metadata-garbage",
}


def answer(case: Case) -> ApiError | None:
    """What the schemas alone decide about a body: parsing, limits, payloads, sampling."""
    try:
        request = parse_body(case.kind, case.raw, case.limits)
        check_request(case.kind, request, case.limits)
        _check_rest(request, case)
    except ApiError as error:
        return error
    return None


def _check_rest(request: BaseModel, case: Case) -> None:
    if isinstance(
        request,
        DerenderChatRequest
        | DerenderChatStreamRequest
        | DerenderCompletionRequest
        | DerenderCompletionStreamRequest,
    ):
        check_derender(request, case.limits, has_parser=case.has_parser)
    elif isinstance(request, GenerateRequest):
        _decode_payloads(request)
    elif isinstance(request, CompletionRequest) and not request.prompts:
        check_prompts(request)  # as render does
    elif isinstance(request, ChatCompletionRequest):
        check_parts(request.messages)  # as render does, message by message
        check_sampling(_sampling_of(request), case.limits)
    elif hasattr(request, "frequency_penalty"):
        check_sampling(_sampling_of(request), case.limits)


def _decode_payloads(request: GenerateRequest) -> None:
    for item in request.features.items() if request.features else ():
        for payload in (item.kwargs_data, item.mm_metadata):
            if payload is not None:
                item_bytes(payload)


def _sampling_of(request: BaseModel) -> SamplingParams:
    """The request's own values, as render fills them in for a prompt with room for 8 tokens."""
    names = ("n", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "min_tokens")
    names += ("frequency_penalty", "presence_penalty", "repetition_penalty", "max_tokens")
    given = {
        name: getattr(request, name) for name in names if getattr(request, name, None) is not None
    }
    given["logit_bias"] = token_bias(getattr(request, "logit_bias", None))
    return SamplingParams(**given)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].status != 200 and n not in OURS])
def test_a_refused_body_is_refused_with_the_recorded_status_type_and_param(name: str) -> None:
    case = CASES[name]
    error = answer(case)
    assert error is not None
    assert error.status == case.status
    if case.error is None:
        assert isinstance(error, UnreadableBody)
        return
    assert (error.type, error.param) == case.error[:2]
    if name not in WORDED_OTHERWISE:
        assert error.message == case.error[2]


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].status == 200])
def test_an_accepted_body_is_accepted(name: str) -> None:
    assert answer(CASES[name]) is None


def test_an_item_that_brings_nothing_is_refused_where_vllm_fails() -> None:
    error = answer(CASES["g-no-payload-unseen-hash"])
    assert error is not None
    assert (error.status, error.type, error.param) == (400, "Bad Request", "body")


def test_enough_cases_are_compared() -> None:
    assert len(CASES) > 120
