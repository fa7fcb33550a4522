"""Requests a whole fleet refuses, and what else it keeps to over HTTP."""

import pytest

from schemas.routes import Stop
from tests.fleet.asking import CHAT, COMPLETION, NAME, chat, picture
from tests.fleet.embedded import Running, whole_fleet

REFUSED = {
    "unknown model": (CHAT, chat("Hi", model="other"), 404, "NotFoundError"),
    "no messages": (CHAT, {"model": NAME}, 400, "Bad Request"),
    "not a picture": (
        CHAT,
        chat("Hi", ["data:image/png;base64,aGVsbG8="]),
        400,
        "BadRequestError",
    ),
    "too long": (
        COMPLETION,
        {"model": NAME, "prompt": "word " * 20_000, "max_tokens": 1},
        400,
        "BadRequestError",
    ),
}


@pytest.mark.parametrize(("path", "body", "status", "kind"), REFUSED.values(), ids=REFUSED)
async def test_a_refusal_has_the_form_of_an_error_body(embedded, path, body, status, kind):
    error = (await embedded.ask(path, body, status=status))["error"]

    assert error["type"] == kind
    assert error["code"] == status
    assert error["message"]
    assert not embedded.sent_to(Stop.PREFILL)


async def test_a_body_that_is_not_json_is_refused(embedded):
    response = await embedded.client.post(
        CHAT, content=b"{", headers={"content-type": "application/json"}
    )

    assert response.status_code == 400


async def test_a_standard_server_does_not_open_its_stages(tmp_path):
    closed = whole_fleet(tmp_path / "ec", is_scale_out=False)

    async with Running(closed, tmp_path / "ec") as embedded:
        refused = await embedded.ask(f"{CHAT}/render", chat("Hi"), status=403)
        answer = await embedded.say(chat("Hi"))

    assert refused["error"]["type"] == "PermissionDeniedError"
    assert answer


async def test_a_request_beyond_its_deadline_is_answered_as_late(tmp_path):
    hasty = whole_fleet(tmp_path / "ec", ingress={"request_timeout_s": 0.001})

    async with Running(hasty, tmp_path / "ec") as embedded:
        error = (await embedded.ask(CHAT, chat("Hi", [picture(1)]), status=504))["error"]

    assert error["type"] == "GatewayTimeout"


async def test_a_fleet_is_ready_and_tells_its_model(embedded):
    assert (await embedded.client.get("/ready")).status_code == 200
    assert (await embedded.client.get("/health")).status_code == 200
    (model,) = (await embedded.client.get("/v1/models")).json()["data"]
    assert model["id"] == NAME
    assert b"tokenfleet" in (await embedded.client.get("/metrics")).content
