"""The endpoints against what vLLM answered."""

import pytest

from schemas.errors import ApiError
from schemas.routes import URL_OF_KIND, Kind

from .builders import answer
from .recordings import assert_same, recorded, steps_of

KIND_OF_URL = {url: kind for kind, url in URL_OF_KIND.items()}
ANSWERS, ERRORS = recorded("answers"), recorded("errors")


def kind_of(case: dict) -> Kind:
    return KIND_OF_URL[case["endpoint"]]


@pytest.mark.parametrize("case", ANSWERS, ids=[case["id"] for case in ANSWERS])
async def test_answers_are_vllms(case, start):
    stage, state = await start(case["model"]), None

    for step in steps_of(case):
        request = dict(step["request"])
        if state is not None:
            request["stream_state"] = state
        got = await answer(stage, kind_of(case), request)
        assert_same(step["response"], got, case["volatile"])
        state = got.get("stream_state")


@pytest.mark.parametrize("case", ERRORS, ids=[case["id"] for case in ERRORS])
async def test_refusals_are_vllms(case, start):
    stage = await start(case["model"])
    body = case["request_raw"].encode() if "request_raw" in case else case["request"]

    if case["status"] == 200:
        assert_same(case["response"], await answer(stage, kind_of(case), body), case["volatile"])
        return
    with pytest.raises(ApiError) as caught:
        await answer(stage, kind_of(case), body)

    expected, got = case["response"]["error"], caught.value.body()["error"]
    assert caught.value.status == case["status"]
    assert {k: got[k] for k in ("type", "param", "code")} == {
        k: expected[k] for k in ("type", "param", "code")
    }


PARSED = recorded("parsers")


@pytest.mark.parametrize("case", PARSED, ids=[case["id"] for case in PARSED])
async def test_parsed_answers_are_vllms(case, start):
    """Hermes with qwen3, and llama3_json: every delta and every state of a stream is the same."""
    stage, state = await start(case["model"], **case["options"]), None

    for step in steps_of(case):
        request = dict(step["request"])
        if state is not None:
            request["stream_state"] = state
        got = await answer(stage, kind_of(case), request)
        assert_same(step["response"], got, case["volatile"])
        state = got.get("stream_state")


COUPLED = recorded("coupled")
MADE_ANEW = ["$.id", "$.created", "$.system_fingerprint"]


@pytest.mark.parametrize("case", COUPLED, ids=[str(number) for number in range(len(COUPLED))])
async def test_coupled_answers_are_an_engines(case, start):
    """From the engine's own render and generate answers to what it answers in one go."""
    stage = await start()

    got = await answer(
        stage,
        kind_of(case),
        case["request"],
        prompts=case["prompts"],
        generated=case["generated"],
    )

    assert_same(case["response"], got, MADE_ANEW)
