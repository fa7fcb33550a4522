"""Reasoning effort on its way to a template, by every way a request can name it."""

from typing import Any

import pytest
from pydantic import ValidationError

from runtime.settings import RenderSettings
from schemas.routes import URL_OF_KIND, Kind
from tests.render.builders import DATA, answer, chat, start_stage, user
from workers.render.stage import RenderStage
from workers.text.tokenizer import Tokenizer

MODEL = "tiny-qwen3-thinking"
TOKENIZER = Tokenizer.from_directory(DATA / "models" / MODEL)
SHOWS_ITS_KWARGS = "e={{ reasoning_effort }} t={{ enable_thinking }}"
MAP = {"medium": "low", "xhigh": "none", "none": "off", "max": "auto"}
HELLO = {"messages": [{"role": "user", "content": "Hi"}], "model": MODEL, "max_tokens": 1}


async def stage_with(**settings: Any) -> RenderStage:
    settings = {"chat_template": SHOWS_ITS_KWARGS, "reasoning_effort_map": MAP} | settings
    return await start_stage(MODEL, **settings)


async def text_of(stage: RenderStage, **fields: Any) -> str:
    return TOKENIZER.decode((await chat(stage, [user("Hi")], **fields))["token_ids"])


async def text_by(stage: RenderStage, kind: Kind, **fields: Any) -> str:
    status, rendered = await answer(stage, URL_OF_KIND[kind], fields)
    assert status == 200, rendered
    return TOKENIZER.decode(rendered["token_ids"])


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("low", "e=low t=True"),
        ("medium", "e=low t=True"),
        ("xhigh", "e=none t=False"),
        ("none", "e=off t=True"),
        ("max", "e= t=True"),
    ],
)
async def test_a_mapped_effort_also_decides_about_thinking(asked: str, shown: str) -> None:
    assert await text_of(await stage_with(), reasoning_effort=asked) == shown


async def test_kwargs_are_the_templates_own_words() -> None:
    stage = await stage_with(default_chat_template_kwargs={"reasoning_effort": "medium"})

    assert await text_of(stage) == "e=medium t="
    assert await text_of(stage, chat_template_kwargs={"reasoning_effort": "xhigh"}) == "e=xhigh t="
    both = {"reasoning_effort": "high", "enable_thinking": False}
    assert (
        await text_of(stage, reasoning_effort="medium", chat_template_kwargs=both)
        == "e=low t=False"
    )


async def test_responses_and_messages_are_mapped_alike() -> None:
    stage = await stage_with()

    assert (
        await text_by(stage, Kind.RESPONSES_RENDER, input="Hi", reasoning={"effort": "xhigh"})
        == "e=none t=False"
    )
    assert (
        await text_by(stage, Kind.MESSAGES_RENDER, output_config={"effort": "medium"}, **HELLO)
        == "e=low t=True"
    )
    assert (
        await text_by(stage, Kind.MESSAGES_RENDER, thinking={"type": "disabled"}, **HELLO)
        == "e=off t=True"
    )


async def test_disabled_thinking_takes_the_effort_the_server_is_set_up_with() -> None:
    stage = await stage_with(anthropic_disabled_thinking_effort="medium")

    text = await text_by(stage, Kind.MESSAGES_RENDER, thinking={"type": "disabled"}, **HELLO)

    assert text == "e=low t=True"


@pytest.mark.parametrize("given", [{"bogus": "x"}, {"low": 1}, "x"])
def test_a_map_of_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError):
        RenderSettings(reasoning_effort_map=given)
