"""What vLLM's servers answered where the HTTP front decides alone, over a real socket."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from ingress.app import create_app
from ingress.scale_out import scale_out
from ingress.server import HttpServer
from runtime.settings import IngressSettings

from .conftest import LIMITS, MODEL

LINES = (Path(__file__).parent.parent / "data/launch/cases.jsonl").read_text().splitlines()
CASES: list[dict[str, Any]] = [json.loads(line) for line in LINES]


def options_of(server: dict[str, Any]) -> tuple[IngressSettings, dict[str, Any], int]:
    flags, mode = server["flags"], server["mode"]
    settings = IngressSettings(api_key=tuple(_values(flags, "--api-key")))
    # A render server of this release is always on, whatever the variable says.
    value = None if mode == "render" else server["env"].get("VLLM_ENABLE_SCALE_OUT_ENDPOINTS")
    is_on = scale_out(mode, "--enable-scale-out" in flags, value)
    length = next(map(int, _values(flags, "--max-model-len")), MODEL.max_model_len)
    return settings, {"mode": mode, "is_scale_out": is_on}, length


def _values(flags: list[str], name: str) -> list[str]:
    return [flags[at + 1] for at, flag in enumerate(flags) if flag == name]


@pytest.fixture
async def serve(gateway):
    servers = []

    async def start(server: dict[str, Any]) -> str:
        settings, options, length = options_of(server)
        name = server["model"]
        model = dataclasses.replace(
            MODEL, name=f"./{name}", served_names=(name,), max_model_len=length
        )
        app = create_app(settings, model, LIMITS, gateway, registry=CollectorRegistry(), **options)
        servers.append(HttpServer(app, host="127.0.0.1", port=0))
        await servers[-1].start()
        return f"http://127.0.0.1:{servers[-1].port}"

    yield start
    for server in servers:
        await server.close()


SERVERS = {case["server"]["name"]: case["server"] for case in CASES}


@pytest.mark.parametrize("name", sorted(SERVERS))
async def test_the_front_answers_as_vllm_does(name, serve):
    url = await serve(SERVERS[name])

    async with httpx.AsyncClient(trust_env=False, base_url=url) as client:
        for case in CASES:
            if case["server"]["name"] == name:
                assert_answered(case, await ask(client, case))


async def ask(client: httpx.AsyncClient, case: dict[str, Any]) -> httpx.Response:
    content = case["request_raw"] if "request_raw" in case else json.dumps(case.get("request"))
    headers = {"content-type": "application/json"} | case.get("headers", {})
    body = {"content": content} if case["method"] == "POST" else {}
    return await client.request(case["method"], case["endpoint"], headers=headers, **body)


def assert_answered(case: dict[str, Any], response: httpx.Response) -> None:
    assert response.status_code == case["status"], case["id"]
    if case.get("compare") == "routes":
        paths = response.json()["paths"].items()
        listed = {f"{method.upper()} {path}" for path, item in paths for method in item}
        assert set(case["routes"]) <= listed
    elif "response" in case:
        got, expected = response.json(), case["response"]
        assert without(case["volatile"], got) == without(case["volatile"], expected), case["id"]
    else:
        assert response.text == case["response_text"], case["id"]


def without(volatile: list[str], value: Any, path: str = "$") -> Any:
    """The value with volatile fields, and the words of errors, left out."""
    if path == "$.error.message" or re.sub(r"\[\d+\]", "[*]", path) in volatile:
        return None
    if isinstance(value, dict):
        return {key: without(volatile, item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [without(volatile, item, f"{path}[{n}]") for n, item in enumerate(value)]
    return value
