"""SIGTERM while requests are under way: everybody is answered, and the process ends cleanly."""

import asyncio
import time
from pathlib import Path

import httpx

from runtime.kafka_local import free_port
from tests.fleet.asking import MODEL
from tests.fleet.processes import START_S, Process, until

BUDGET_S = 4
LONG = {
    "model": "m",
    "prompt": "a",
    "max_tokens": 4000,
    "min_tokens": 4000,
    "temperature": 1,
}


def serve(folder: Path) -> Process:
    port = free_port()
    flags = {
        "--port": str(port),
        "--served-model-name": "m",
        "--shutdown-timeout-s": str(BUDGET_S),
        "--engine-threads": "1",
        "--log-format": "json",
    }
    words = [word for pair in flags.items() for word in pair]
    return Process("serve", ["serve", str(MODEL), *words], log=folder / "serve.log", probes=port)


async def test_requests_under_way_are_answered_503_within_the_budget(tmp_path):
    server = serve(tmp_path)
    try:
        await asyncio.to_thread(until, server.is_ready, server.describe, START_S)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            asking = [
                asyncio.create_task(client.post("/v1/completions", json=LONG | {"n": n}))
                for n in (4, 16)
            ]
            host, port = server.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(KEPT_BACK)
            await asyncio.to_thread(until, lambda: is_working(server), server.describe, 30)

            began = time.monotonic()
            server.terminate()
            answers = await asyncio.gather(*asking)
            code = await asyncio.to_thread(server.exit_code)
            took_s = time.monotonic() - began
            await reader.read()
            writer.close()
    finally:
        server.kill()

    assert code == 0, server.output()
    assert took_s < BUDGET_S + 3  # the machine may be busy
    for answer in answers:
        assert answer.status_code in (200, 503), answer.text
    late = [answer for answer in answers if answer.status_code == 503]
    assert late, "nothing was under way any more"
    for answer in late:
        assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        assert "shutting down" in answer.json()["error"]["message"]
    assert "Traceback" not in server.output()
    assert all(line.startswith("{") for line in server.output().splitlines())


KEPT_BACK = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 100\r\n\r\n{"
)


def is_working(server: Process) -> bool:
    """Whether both have come as far as the engine."""
    handled = server.events("record_handled")
    return sum(event["topic"].endswith(".render") for event in handled) >= 2
