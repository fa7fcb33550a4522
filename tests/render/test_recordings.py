"""Requests and answers recorded from vLLM 0.33's render server."""

import json
from functools import cache
from typing import Any

import pytest

from tests.render.builders import DATA, FakeMedia, answer, start_stage
from workers.render.stage import RenderStage

LINES = (DATA / "render" / "recordings.jsonl").read_text(encoding="utf-8").splitlines()
CASES: list[dict[str, Any]] = [json.loads(line) for line in LINES]


@cache
def _media(model: str) -> FakeMedia | None:
    media = FakeMedia()
    if model == "tiny-llava":
        media.literals = ("<image>",)
        media.placeholder = lambda modality, index: "<image>"  # type: ignore[method-assign]
    return media if model in ("tiny-llava", "tiny-qwen3-vl") else None


@pytest.fixture(scope="module")
def stages() -> dict[str, RenderStage]:
    """Started ones, by model: each model was recorded with one set of flags."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=[f"{c['model']}: {c['name']}" for c in CASES])
async def test_answers_as_vllm_does(case: dict[str, Any], stages: dict[str, RenderStage]) -> None:
    model = case["model"]
    if model not in stages:
        stages[model] = await start_stage(model, *case["flags"], media=_media(model))
    header = {key.lower(): value for key, value in case["headers"].items()}.get("x-request-id")

    status, body = await answer(stages[model], case["endpoint"], case["request"], request_id=header)

    expected = case["response"]
    assert case["status"] == status
    if status == 200:
        assert _stable(expected, case) == _stable(body, case)
    else:
        keys = ("type", "param", "code")
        assert [expected["error"][k] for k in keys] == [body["error"][k] for k in keys]


def _stable(body: Any, case: dict[str, Any]) -> str:
    """The body's text, the order of its keys included, without the ids that are made up."""
    entries = body if isinstance(body, list) else [body]
    if any("request_id" in path for path in case["volatile"]):
        entries = [entry | {"request_id": None} for entry in entries]
    return json.dumps(entries, indent=1)
