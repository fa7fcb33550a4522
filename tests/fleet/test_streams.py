"""A streamed answer, joined, is the whole answer: through all stages, as clients read it."""

import json

import openai
import pytest

from schemas.routes import Stop
from tests.fleet.asking import CHAT, COMPLETION, GENERATE, NAME, chat, picture
from tests.fleet.embedded import Embedded

USAGE = {"stream_options": {"include_usage": True}}


async def stream(fleet: Embedded, path: str, body: dict) -> list[dict]:
    response = await fleet.client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = [e.removeprefix("data: ") for e in response.text.split("\n\n") if e]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def joined(events: list[dict], index: int = 0) -> str:
    choices = [c for event in events for c in event["choices"] if c["index"] == index]
    return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in choices)


@pytest.mark.parametrize("pictures", [0, 2])
async def test_a_streamed_chat_says_what_the_whole_one_says(embedded: Embedded, pictures: int):
    body = chat("What is it?", [picture(n) for n in range(pictures)], max_tokens=24)
    whole = await embedded.ask(CHAT, body)

    events = await stream(embedded, CHAT, body | USAGE)

    assert joined(events) == whole["choices"][0]["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["usage"] == {k: v for k, v in whole["usage"].items() if v is not None}
    assert {event["id"] for event in events} == {events[0]["id"]}


async def test_stop_strings_never_show(embedded: Embedded):
    body = chat("What is it?", max_tokens=24)
    text = await embedded.say(body)
    stop = text[9:12]

    events = await stream(embedded, CHAT, body | {"stop": [stop]})

    assert joined(events) == text[: text.index(stop)]
    assert events[-1]["choices"][0]["stop_reason"] == stop


async def test_choices_of_several_prompts_are_told_apart(embedded: Embedded):
    body = {"model": NAME, "prompt": ["One", "Two"], "n": 2, "seed": 3, "max_tokens": 6}
    whole = await embedded.ask(COMPLETION, body)

    events = await stream(embedded, COMPLETION, body)

    for choice in whole["choices"]:
        assert joined(events, choice["index"]) == choice["text"]
    assert len(whole["choices"]) == 4


async def test_a_generate_request_streams_its_tokens(embedded: Embedded):
    body = {"token_ids": [2001, 368, 81], "sampling_params": {"temperature": 0, "max_tokens": 9}}
    whole = await embedded.ask(GENERATE, body)

    events = await stream(embedded, GENERATE, body)

    tokens = [token for event in events for token in event["choices"][0]["token_ids"]]
    assert tokens == whole["choices"][0]["token_ids"]


async def test_a_bad_request_is_refused_with_its_status(embedded: Embedded):
    body = chat("Hello", stream=True, max_tokens=0)

    response = await embedded.client.post(CHAT, json=body)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


async def test_tokens_travel_in_records_of_their_own(embedded: Embedded):
    await stream(embedded, CHAT, chat("What is it?", max_tokens=24))

    sizes = [len(record.value) for record in embedded.records_for(Stop.DERENDER)]

    assert len(sizes) >= 2
    assert max(sizes) < 64 * 1024


async def test_the_openai_client_reads_it(embedded: Embedded):
    client = openai.AsyncOpenAI(base_url=f"{embedded.client.base_url}/v1", api_key="none")
    body = chat("What is it?", max_tokens=12)

    chunks = [c async for c in await client.chat.completions.create(**body, stream=True)]

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == await embedded.say(body)
    await client.close()
