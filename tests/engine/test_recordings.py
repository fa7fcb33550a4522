"""Every recorded answer of a real engine, given by our stages."""

import json
import re

import pytest
import pytest_asyncio

from tests.engine.builders import MODELS, Fleet, recorded_cases

CASES = recorded_cases()
SAMPLED = ["token_ids", "logprobs", "stop_reason", "text"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ec")
    models = sorted({case["model"] for case in CASES})
    started = {model: Fleet(MODELS / model, folder / model) for model in models}
    for fleet in started.values():
        await fleet.start()
    yield started
    for fleet in started.values():
        await fleet.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_recorded_request_is_answered_alike(case, fleets):
    fleet = fleets[case["model"]]
    for step in case["setup"]:
        status, _ = await fleet.ask(step["request"], step["stage"])
        assert status == 200

    status, body = await fleet.ask(case["request"], case["stage"])

    ignored = set(case["volatile"])
    if case["seeded"]:
        ignored |= {f"$.choices[*].{name}" for name in SAMPLED}
    assert status == case["status"]
    assert list(differences(case["response"], body, ignored, case["tol"] or 1e-4)) == []


def differences(recorded, given, ignored, tolerance, path="$"):
    if re.sub(r"\[\d+\]", "[*]", path) in ignored or path.endswith(".error.message"):
        return
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in sorted(recorded.keys() | given.keys()):
            if key not in recorded or key not in given:
                yield f"{path}.{key} is on one side only"
            else:
                inside = (recorded[key], given[key], ignored, tolerance)
                yield from differences(*inside, f"{path}.{key}")
    elif isinstance(recorded, list) and isinstance(given, list) and len(recorded) == len(given):
        for index, (left, right) in enumerate(zip(recorded, given, strict=True)):
            yield from differences(left, right, ignored, tolerance, f"{path}[{index}]")
    elif not alike(recorded, given, tolerance if "logprob" in path else 0):
        yield f"{path}: {json.dumps(recorded)[:80]} != {json.dumps(given)[:80]}"


def alike(recorded, given, tolerance):
    if isinstance(recorded, float) and isinstance(given, float | int):
        return abs(recorded - given) <= tolerance * max(1.0, abs(recorded))
    return recorded == given and type(recorded) is type(given)
