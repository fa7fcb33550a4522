import asyncio
import json
import tracemalloc

import httpx
import pybase64
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingress.answers import outcome_response
from runtime.settings import IngressSettings
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import REQUEST, Base64Of, BlobRef, Outcome
from schemas.routes import URL_OF_KIND, Kind
from tests.ingress.fakes import submit

RENDER_URL = URL_OF_KIND[Kind.CHAT_RENDER]
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("kind", list(Kind))
async def test_every_kind_has_its_route_and_its_body_arrives_unchanged(make_client, fleet, kind):
    body = b'{"model": "tiny",\n "k\\u00e9y": 1.0}'

    response = await make_client().post(
        URL_OF_KIND[kind], content=body, headers={**JSON, "x-request-id": "mine"}
    )

    assert (response.status_code, response.content) == (200, b'{"ok":true}')
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == "11"
    (envelope,) = fleet.seen
    assert (envelope.kind, envelope.parts[REQUEST]) == (kind, body)
    assert envelope.caller.request_id == "mine"


async def test_an_error_outcome_comes_out_with_its_status_and_body(make_client, fleet):
    fleet.answer = lambda e: Outcome(status=404, segments=[b'{"error":1}'], code="not_found")

    response = await make_client().post(RENDER_URL, json={})

    assert (response.status_code, response.json()) == (404, {"error": 1})


async def test_a_refusal_for_now_says_when_to_try_again(make_client, fleet):
    fleet.answer = lambda e: Outcome(status=503, segments=[b"{}"])

    response = await make_client().post(RENDER_URL, json={})

    assert response.headers["retry-after"] == "1"


async def test_holes_are_filled_with_base64_from_the_store(make_client, fleet):
    first = bytes(range(256)) * 9000  # several slices
    refs = [await fleet.blobs.put(first), await fleet.blobs.put(b"ab")]
    segments = [b'{"a":"', Base64Of(blob=refs[0]), b'","b":"', Base64Of(blob=refs[1]), b'"}']
    fleet.answer = lambda e: Outcome(status=200, segments=segments)

    response = await make_client().post(RENDER_URL, json={})

    text = {key: pybase64.b64decode(value) for key, value in response.json().items()}
    assert text == {"a": first, "b": b"ab"}
    assert int(response.headers["content-length"]) == len(response.content)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    ends_with_text=st.booleans(),
)
def test_the_length_is_told_before_the_blobs_are_read(sizes, ends_with_text):
    blobs = MemoryBlobs()

    async def body_of() -> tuple[int, bytes, bytes]:
        refs = [await blobs.put(bytes([n]) * size) for n, size in enumerate(sizes)]
        segments = [Base64Of(blob=ref) for ref in refs] + [b"end"] * ends_with_text
        response = outcome_response(Outcome(status=200, segments=segments), blobs)
        sent: list[bytes] = []

        async def send(message) -> None:
            sent.append(message.get("body", b""))

        await response({"type": "http"}, None, send)
        plain = (
            b"".join(pybase64.b64encode(bytes([n]) * size) for n, size in enumerate(sizes))
            + b"end" * ends_with_text
        )
        return int(response.headers["content-length"]), b"".join(sent), plain

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingress.answers.SLICE_BYTES", 9)
        length, body, plain = asyncio.run(body_of())

    assert body == plain
    assert length == len(body)


async def test_a_tensor_that_is_lost_is_an_error_body(make_client, fleet):
    hole = Base64Of(blob=BlobRef(digest="0" * 64, size=10))
    fleet.answer = lambda e: Outcome(status=200, segments=[b"[", hole, b"]"])

    response = await make_client().post(RENDER_URL, json={})

    assert response.status_code == 503
    assert response.json()["error"]["type"] == "ServiceUnavailableError"


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/xml"])
async def test_another_media_type_is_refused(make_client, content_type):
    response = await make_client().post(
        RENDER_URL, content=b"{}", headers={"content-type": content_type}
    )

    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "1 validation error:\n"
        "  Unsupported Media Type: Only 'application/json' is allowed",
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_beyond_the_limit_is_refused_while_it_comes(make_client, fleet, is_announced):
    async def chunks():
        for _ in range(8):
            yield b"a" * 512

    content = b"a" * 4096 if is_announced else chunks()

    response = await make_client(IngressSettings(max_body_bytes=2048)).post(
        RENDER_URL, content=content, headers=JSON
    )

    assert response.status_code == 413
    assert fleet.seen == []


async def test_a_deadline_is_a_504_error_body(make_client, fleet):
    fleet.answer = lambda e: None

    response = await make_client(IngressSettings(request_timeout_s=0.05)).post(RENDER_URL, json={})

    assert response.status_code == 504
    assert response.json()["error"]["code"] == 504


async def test_a_client_that_leaves_frees_its_place(make_app, gateway, fleet):
    fleet.answer = lambda e: None
    messages = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
    scope = {
        "type": "http",
        "method": "POST",
        "path": RENDER_URL,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    sent = []

    async def send(message) -> None:
        sent.append(message)

    call = asyncio.create_task(make_app()(scope, messages.get, send))
    await fleet.until_seen(1)
    held = gateway.in_flight
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(call, 10)

    assert (held, gateway.in_flight) == (1, 0)


class Sieve(MemoryBlobs):
    """Lets everything through and keeps nothing."""

    async def put(self, data):
        return BlobRef(digest="0" * 64, size=len(data))


async def test_a_large_body_is_not_held_while_its_request_waits(make_client, fleet, gateway):
    gateway.blobs, fleet.answer = Sieve(), lambda e: None

    async def chunks():
        for _ in range(8):
            yield b"a" * 1_000_000

    tracemalloc.start()
    request = asyncio.create_task(make_client().post(RENDER_URL, content=chunks(), headers=JSON))
    await fleet.until_seen(1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await fleet.reply(fleet.seen[0], Outcome(status=200, segments=[b"{}"]))
    await request

    assert held < 2_000_000


async def test_with_all_places_taken_a_body_is_not_even_read(make_app, fleet, gateway):
    fleet.answer = lambda e: None
    waiting = [asyncio.create_task(submit(gateway)) for _ in range(4)]
    await fleet.until_seen(4)

    async def nothing():
        raise AssertionError("read")

    sent = []

    async def send(message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": RENDER_URL, "headers": [],
             "query_string": b""}  # fmt: skip
    await make_app()(scope, nothing, send)
    for task in waiting:
        task.cancel()

    assert sent[0]["status"] == 503


@pytest.mark.parametrize("body", [b'{"stream": false}', b'{"stream": true', b'["stream"]'])
async def test_what_does_not_ask_for_a_stream_goes_on(make_client, fleet, body):
    await make_client().post(URL_OF_KIND[Kind.CHAT], content=body, headers=JSON)

    assert len(fleet.seen) == 1


async def test_a_render_server_has_no_engine_routes(make_client):
    client = make_client(mode="render")

    for kind in (Kind.CHAT, Kind.COMPLETION, Kind.GENERATE):
        response = await client.post(URL_OF_KIND[kind], json={})
        assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


async def test_switched_off_routes_answer_403_before_the_body_is_looked_at(make_client, fleet):
    client = make_client(is_scale_out=False)

    for kind in (Kind.CHAT_RENDER, Kind.GENERATE, Kind.COMPLETION_DERENDER):
        response = await client.post(URL_OF_KIND[kind], content=b"{")
        assert response.status_code == 403
        assert response.json()["error"]["type"] == "PermissionDeniedError"
    assert (await client.post("/inference/v1/abort_requests")).status_code == 403
    assert (await client.get(URL_OF_KIND[Kind.GENERATE])).status_code == 405
    assert (await client.post(URL_OF_KIND[Kind.CHAT], json={})).status_code == 200
    assert len(fleet.seen) == 1


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}"])
async def test_an_abort_without_ids_is_the_callers_fault(make_client, content):
    response = await make_client().post("/inference/v1/abort_requests", content=content)

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "Bad Request"


async def test_an_abort_is_told_to_be_unsupported(make_client):
    body = {"request_ids": ["generate-tokens-1"]}

    response = await make_client().post("/inference/v1/abort_requests", json=body)

    assert response.status_code == 501


async def test_keys_guard_the_api_and_nothing_else(make_client):
    client = make_client(IngressSettings(api_key=("one", "two", "")))

    async def get(path: str, authorization: str | None = None) -> int:
        headers = {"authorization": authorization} if authorization else {}
        return (await client.get(path, headers=headers)).status_code

    assert await get("/v1/models") == 401
    assert await get("/v1/models", "Bearer three") == 401
    assert await get("/v1/models", "Bearer ") == 401
    assert await get("/v1/models", "Basic one") == 401
    assert await get("/v1/models", "Bearer one") == 200
    assert await get("/v1/models", "bearer two") == 200
    assert await get("/v1/nothing") == 401
    assert await get("/inference/v1/nothing") == 401
    assert await get("/nothing") == 404
    assert await get("/health") == 200
    response = await client.get("/v1/models")
    assert response.json() == {"error": "Unauthorized"}


async def test_request_ids_are_echoed_or_made_on_every_response(make_client):
    client = make_client(IngressSettings(api_key=("one",), enable_request_id_headers=True))

    echoed = await client.get("/v1/models", headers={"x-request-id": "mine"})
    made = await client.get("/nothing")

    assert (echoed.status_code, echoed.headers["x-request-id"]) == (401, "mine")
    assert len(made.headers["x-request-id"]) == 32


async def test_every_response_varies_by_origin(make_client):
    client = make_client()

    for path in ("/health", "/nothing", "/v1/models"):
        assert (await client.get(path)).headers["vary"] == "Origin"


async def test_the_model_list_has_a_card_for_each_served_name(make_client):
    cards = (await make_client().get("/v1/models")).json()["data"]

    assert [card["id"] for card in cards] == ["tiny", "alias"]
    assert {card["root"] for card in cards} == {"./tiny"}
    assert {card["max_model_len"] for card in cards} == {4096}


async def test_readiness_lists_what_is_missing(make_client, gateway):
    problems = {"store": "not shared"}

    async def readiness():
        return problems

    client = make_client(readiness=readiness)
    unready = await client.get("/ready")
    problems.clear()
    ready = await client.get("/ready")
    await gateway.close()
    closed = await client.get("/ready")

    assert (unready.status_code, unready.json()["problems"]) == (503, {"store": "not shared"})
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "problems": {}})
    assert (closed.status_code, "replies" in closed.json()["problems"]) == (503, True)
    assert (await client.get("/health")).status_code == 503


async def test_metrics_count_requests_by_route_and_never_by_what_a_caller_makes_up(make_client):
    client = make_client()

    await client.post(RENDER_URL, json={})
    await client.get("/secret-1")
    await client.get("/health")
    text = (await client.get("/metrics")).text

    ok = f'http_requests_total{{handler="{RENDER_URL}",method="POST",status="2xx"}} 1.0'
    assert ok in text
    assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in text
    assert "secret" not in text
    assert "/health" not in text
    assert "tokenfleet_ingress_in_flight 0.0" in text


async def test_a_bug_is_an_error_body_without_details(make_client, fleet, gateway, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr(gateway, "ask", broken)

    response = await make_client().post(RENDER_URL, json={})

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"
    assert "secret" not in response.text


def _routes(document: dict) -> set[str]:
    return {
        f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item
    }


async def test_unserved_routes_are_listed_and_refused_in_words(make_client: object):
    client: httpx.AsyncClient = make_client()  # type: ignore[operator]
    document = (await client.get("/openapi.json")).json()

    response = await client.post("/v1/responses", json={})

    assert "POST /v1/responses" in _routes(document)
    assert response.status_code == 501
    assert "/v1/responses" in response.json()["error"]["message"]
    assert json.dumps(document)
