"""The probes of a role, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from runtime.errors import SettingsError
from runtime.health import HealthServer, Readiness
from runtime.kafka_local import free_port
from runtime.settings import HealthSettings
from runtime.telemetry import Telemetry

ANY_PORT = HealthSettings(health_port=0)


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
async def server(readiness: Readiness) -> AsyncIterator[HealthServer]:
    made = HealthServer(ANY_PORT, readiness=readiness, telemetry=Telemetry())
    await made.start()
    yield made
    await made.stop()
    await made.stop()


async def ask(server: HealthServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split(" ")[1]), headers, body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_health_is_ok_while_the_loop_answers(server):
    status, headers, body = await ask(server, get("/health"))

    assert (status, json.loads(body)) == (200, {"status": "ok"})
    assert headers["content-length"] == str(len(body))


async def test_ready_tells_every_reason_it_is_not(server, readiness):
    warm = False
    readiness.require_true(lambda: warm, "the model is loading")
    readiness.require(lambda: "no partitions yet")

    status, _, body = await ask(server, get("/ready?verbose=1"))
    assert status == 503
    assert json.loads(body)["reasons"] == ["the model is loading", "no partitions yet"]


async def test_ready_once_nothing_is_missing_and_not_while_draining(server, readiness):
    readiness.require_true(lambda: True, "never")
    assert (await ask(server, get("/ready")))[0] == 200

    readiness.is_draining = True
    status, _, body = await ask(server, get("/ready"))
    assert (status, json.loads(body)["reasons"]) == (503, ["shutting down"])


async def test_a_loop_that_is_stuck_is_not_alive(readiness):
    server = HealthServer(
        ANY_PORT, readiness=readiness, telemetry=Telemetry(), liveness=[lambda: "no poll for 60 s"]
    )

    answer = server.answer("GET", "/health")

    assert (answer.status, json.loads(answer.body)["reasons"]) == (503, ["no poll for 60 s"])


async def test_metrics_are_in_prometheus_form(server):
    status, headers, body = await ask(server, get("/metrics"))

    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert b"# TYPE tokenfleet_event_loop_lag_seconds gauge" in body


async def test_head_has_no_body(server):
    status, headers, body = await ask(server, get("/health", "HEAD"))

    assert (status, body, headers["content-length"]) == (200, b"", "15")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/"), 404),
        (get("/healthz"), 404),
        (get("/health", "POST"), 405),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_everything_else_is_refused_in_json(server, request_, status):
    answered, headers, body = await ask(server, request_)

    assert answered == status
    assert json.loads(body)["error"]["code"] == status
    assert status != 405 or headers["allow"] == "GET, HEAD"


async def test_a_caller_that_hangs_up_disturbs_nobody(server):
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /hea")
    writer.close()
    await writer.wait_closed()

    assert (await ask(server, get("/health")))[0] == 200


async def test_a_taken_port_is_one_readable_line(server, readiness):
    second = HealthServer(
        HealthSettings(health_port=server.port), readiness=readiness, telemetry=Telemetry()
    )
    with pytest.raises(SettingsError, match=f"--health-port {server.port}"):
        await second.start()
    await second.stop()


async def test_a_default_port_that_is_taken_is_left_to_who_has_it(server, readiness, caplog):
    caplog.set_level("INFO")
    second = HealthServer(
        HealthSettings(), readiness=readiness, telemetry=Telemetry(), default_port=server.port
    )
    await second.start()

    try:
        assert second.port != server.port
        assert (await ask(second, get("/health")))[0] == 200
        assert caplog.records[-1].url == f"http://127.0.0.1:{second.port}"
        assert caplog.records[-1].instead_of == server.port
    finally:
        await second.stop()


async def test_a_default_port_that_is_free_is_taken(readiness):
    port = free_port()
    made = HealthServer(
        HealthSettings(), readiness=readiness, telemetry=Telemetry(), default_port=port
    )
    await made.start()
    try:
        assert made.port == port
    finally:
        await made.stop()


async def test_an_address_that_is_not_ours_is_one_readable_line(readiness):
    made = HealthServer(
        HealthSettings(health_host="192.0.2.1"), readiness=readiness, telemetry=Telemetry()
    )
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1"):
        await made.start()
