import asyncio
import json

from schemas.envelope import Outcome
from schemas.errors import ApiError
from schemas.records.reply import StreamDelta, StreamHead, StreamPiece, TextPart
from schemas.routes import URL_OF_KIND, Kind

CHAT = URL_OF_KIND[Kind.CHAT]
HEAD = StreamHead(
    kind=Kind.CHAT,
    id="chatcmpl-1",
    model="tiny",
    created=7,
    prompt_tokens=3,
    system_fingerprint="fp",
    include_usage=True,
)


def piece(start, *words, head=None, finish=None):
    text = "".join(words)
    delta = StreamDelta(
        choice=0,
        start=start,
        token_ids=list(range(start, start + len(words))),
        parts=[TextPart(start=2 * start, text=text)] if text else [],
        finish_reason=finish,
    )
    return StreamPiece(head=head, deltas=[delta])


def events(text):
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


async def streamed(make_client, fleet, *replies):
    fleet.answer = lambda envelope: None
    asking = asyncio.create_task(make_client().post(CHAT, json={}))
    await fleet.until_seen(1)
    for reply in replies:
        if isinstance(reply, StreamPiece):
            await fleet.send_piece(fleet.seen[0], reply)
        else:
            await fleet.reply(fleet.seen[0], reply)
    return await asking


async def test_pieces_become_events_and_the_outcome_ends_them(make_client, fleet):
    response = await streamed(
        make_client,
        fleet,
        piece(0, "ab", head=HEAD),
        piece(1, "cd", "ef", finish="stop"),
        Outcome(status=200, segments=[b"{}"]),
    )

    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    role, first, second, usage = map(json.loads, chunks)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["delta"] == {"content": "ab"}
    assert second["choices"][0]["delta"] == {"content": "cdef"}
    assert second["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}


async def test_a_stream_that_is_begun_again_repeats_nothing(make_client, fleet):
    response = await streamed(
        make_client,
        fleet,
        piece(0, "ab", "cd", head=HEAD),
        piece(0, "ab", head=HEAD),
        piece(1, "cd", "ef", finish="length"),
        Outcome(status=200, segments=[b"{}"]),
    )

    deltas = [json.loads(event)["choices"] for event in events(response.text)[:-1]]
    text = "".join(choice["delta"].get("content", "") for (choice,) in deltas[:-1])
    assert text == "abcdef"


async def test_other_tokens_end_the_stream_with_a_named_error(make_client, fleet):
    response = await streamed(
        make_client, fleet, piece(0, "ab", head=HEAD), piece(0, "xy", "zz", head=HEAD)
    )

    *_, error, done = events(response.text)
    assert "differ" in json.loads(error)["error"]["message"]
    assert done == "[DONE]"


async def test_a_failure_under_way_is_an_event_of_a_stream(make_client, fleet):
    failed = ApiError("it broke", status=500, type="InternalServerError")
    body = json.dumps(failed.body()).encode()

    response = await streamed(
        make_client, fleet, piece(0, "ab", head=HEAD), Outcome(status=500, segments=[body])
    )

    assert response.status_code == 200
    *_, error, done = events(response.text)
    assert json.loads(error) == failed.body()
    assert done == "[DONE]"


async def test_a_failure_before_the_first_token_keeps_its_status(make_client, fleet):
    response = await streamed(make_client, fleet, Outcome(status=400, segments=[b'{"error":1}']))

    assert (response.status_code, response.json()) == (400, {"error": 1})


async def test_a_finished_stream_frees_its_place(make_client, fleet, gateway):
    await streamed(
        make_client,
        fleet,
        piece(0, "ab", head=HEAD, finish="stop"),
        Outcome(status=200, segments=[b"{}"]),
    )

    assert gateway.in_flight == 0
