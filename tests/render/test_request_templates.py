"""Templates that came with a request: rendered apart, whichever way they came."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.errors import Busy
from schemas.routes import URL_OF_KIND, Kind
from tests.hostile.attacks.templates import LARGE, NESTED, SLOW, bodies
from tests.render.builders import DATA, FakeMedia, answer, chat, image, make_job, start_stage, user
from workers.render.stage import RenderStage

QWEN = "tiny-qwen3-vl"
CHAT = URL_OF_KIND[Kind.CHAT_RENDER]


@pytest.fixture
async def stage() -> AsyncIterator[RenderStage]:
    stage = await start_stage(
        QWEN,
        media=FakeMedia(),
        trust_request_chat_template=True,
        chat_template_timeout_s=1.0,
        chat_template_memory_mb=64,
    )
    yield stage
    await stage.close()


@pytest.mark.parametrize("template", [SLOW["a macro that calls itself twice"], NESTED["500 ifs"]])
async def test_every_way_in_is_limited(stage: RenderStage, template: str) -> None:
    ways = [
        *bodies(template),
        ("kwargs", CHAT, {"chat_template_kwargs": {"chat_template": template}}),
        ("kwargs of tokenize", "/tokenize", {"chat_template_kwargs": {"chat_template": template}}),
        (
            "messages",
            URL_OF_KIND[Kind.MESSAGES_RENDER],
            {"max_tokens": 1, "model": QWEN, "chat_template_kwargs": {"chat_template": template}},
        ),
    ]
    for name, url, body in ways:
        url = CHAT if url == URL_OF_KIND[Kind.CHAT] else url
        hello = {} if "input" in body else {"messages": [{"role": "user", "content": "Hello"}]}
        status, refused = await answer(stage, url, {**hello, **body})

        assert status == 400, name
        assert refused["error"]["message"], name


async def test_limits_name_their_parameter(stage: RenderStage) -> None:
    body = {"messages": [user("x")], "chat_template": LARGE["a repeated text"]}

    status, refused = await answer(stage, CHAT, body)

    assert (status, refused["error"]["param"]) == (400, "chat_template")
    assert "64 MB" in refused["error"]["message"]


async def test_other_chats_go_on_and_further_templates_wait_their_turn() -> None:
    stage = await start_stage(
        QWEN, media=FakeMedia(), trust_request_chat_template=True, chat_template_timeout_s=60
    )
    body = {"messages": [user("x")], "chat_template": SLOW["loops in loops"]}
    tasks = [asyncio.create_task(stage.process(make_job(Kind.CHAT, body))) for _ in range(12)]
    async with asyncio.timeout(30):
        while sum(task.done() for task in tasks) < 8:
            await asyncio.sleep(0)

    assert {type(task.exception()) for task in tasks if task.done()} == {Busy}
    assert (await chat(stage, [user("word " * 2000)]))["token_ids"]
    assert sum(task.done() for task in tasks) == 8
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stage.close()


async def test_a_template_brought_along_renders_pictures(stage: RenderStage) -> None:
    source = (DATA / "models" / QWEN / "chat_template.jinja").read_text("utf-8")
    messages = [user(image("abc"), "What? <|image_pad|>"), {"role": "assistant", "content": "A."}]

    own = await chat(stage, messages)
    brought = await chat(stage, messages, chat_template=source + "{# mine #}")

    for rendered in (own, brought):
        rendered.pop("request_id")
    assert brought == own


@pytest.mark.parametrize("template", [5, ["x"], {"a": 1}, True, 1.5])
async def test_a_template_among_the_kwargs_is_a_text(stage: RenderStage, template: Any) -> None:
    for url in (CHAT, "/tokenize", URL_OF_KIND[Kind.RESPONSES_RENDER]):
        given = {"input": "x"} if "responses" in url else {"messages": [user("x")]}
        body = {**given, "chat_template_kwargs": {"chat_template": template}}

        status, refused = await answer(stage, url, body)

        assert status == 400
        assert refused["error"]["param"] == "chat_template_kwargs"
