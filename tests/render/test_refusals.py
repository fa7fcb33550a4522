"""What a refusal says, and which reason comes first where a request gives several."""

from pathlib import Path
from typing import Any

import pytest

from schemas.routes import URL_OF_KIND, Kind
from tests.render.builders import DATA, FakeMedia, answer, start_stage, user
from workers.render.stage import RenderStage

MODEL = "tiny-qwen3-vl"
AUDIO = {"type": "audio_url", "audio_url": {"url": "data:,x"}}
NOT_SET_UP = "You must set `--enable-prompt-embeds` to input `prompt_embeds`"
NO_DATA = "prompt_embeds content part requires a non-empty `data` field"


async def refusal(stage: RenderStage, kind: Kind, **fields: Any) -> tuple[str, str | None]:
    status, body = await answer(stage, URL_OF_KIND[kind], fields)
    assert status == 400, body
    return body["error"]["message"], body["error"]["param"]


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({}, f"{NOT_SET_UP}. (parameter=prompt_embeds)", "prompt_embeds"),
        ({"prompt": "x"}, f"{NOT_SET_UP}. (parameter=prompt_embeds)", "prompt_embeds"),
        ({"echo": True, "prompt_logprobs": 1}, "Echo is unsupported with prompt embeds.", None),
        ({"prompt_logprobs": 0}, "prompt_logprobs is not compatible with prompt embeds.", None),
        ({"suffix": "x", "prompt": "x"}, "suffix is not supported with prompt_embeds", "suffix"),
    ],
)
async def test_prompt_embeds_of_completions(
    fields: dict[str, Any], message: str, param: str | None
) -> None:
    stage = await start_stage(MODEL)

    asked = {"prompt_embeds": "AAAA"} | fields

    assert await refusal(stage, Kind.COMPLETION_RENDER, **asked) == (message, param)


async def test_empty_prompt_embeds_stand_in_the_way_of_echo_only() -> None:
    stage = await start_stage(MODEL)
    asked = {"prompt": "x", "prompt_embeds": []}

    status, _ = await answer(stage, URL_OF_KIND[Kind.COMPLETION_RENDER], asked)
    message, _ = await refusal(stage, Kind.COMPLETION_RENDER, **asked, echo=True)

    assert status == 200
    assert message == "Echo is unsupported with prompt embeds."


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "prompt_embeds", "data": "AAAA"}, f"{NOT_SET_UP} ("),
        ({"type": "prompt_embeds", "data": ""}, NO_DATA),
        ({"type": "prompt_embeds", "prompt_embeds": "AAAA"}, NO_DATA),
        ({"prompt_embeds": "AAAA", "uuid": "u"}, NO_DATA),
    ],
)
async def test_prompt_embeds_among_content_parts(part: dict[str, Any], message: str) -> None:
    stage = await start_stage(MODEL)

    text, param = await refusal(stage, Kind.CHAT_RENDER, messages=[user("a", part)])

    assert text.startswith(message)
    assert param == "prompt_embeds"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("x", "suffix is only supported"), ([1, 2], "suffix requires text prompt input")],
)
async def test_no_model_fills_in_the_middle(prompt: Any, message: str) -> None:
    stage = await start_stage(MODEL)

    text, param = await refusal(stage, Kind.COMPLETION_RENDER, prompt=prompt, suffix="s")

    assert text.startswith(message)
    assert param == "suffix"


async def test_faults_of_messages_come_before_those_of_the_template() -> None:
    stage = await start_stage(MODEL, media=FakeMedia(), trust_request_chat_template=True)

    _, param = await refusal(
        stage, Kind.CHAT_RENDER, messages=[user(AUDIO)], chat_template="{% for %}"
    )

    assert param == "audio"


async def test_a_single_template_goes_by_no_name() -> None:
    stage = await start_stage(MODEL, media=FakeMedia(), trust_request_chat_template=True)

    ids = []
    for template in ("default", "{{ 'default' }}"):
        asked = {"messages": [user("a")], "chat_template": template}
        _, rendered = await answer(stage, URL_OF_KIND[Kind.CHAT_RENDER], asked)
        ids.append(rendered["token_ids"])

    assert ids[0] == ids[1]


class TestAModelWithoutTemplate:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name).write_bytes((DATA / "models" / MODEL / name).read_bytes())
        return str(tmp_path)

    async def test_takes_one_among_the_kwargs_of_a_trusted_client(self, folder: str) -> None:
        stage = await start_stage(folder, trust_request_chat_template=True)
        asked = {"messages": [user("a", "b")], "chat_template_kwargs": {"chat_template": "x"}}

        status, _ = await answer(stage, URL_OF_KIND[Kind.CHAT_RENDER], asked)

        assert status == 200

    async def test_refuses_tools_nobody_reads_first(self, folder: str) -> None:
        stage = await start_stage(folder)
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        asked = {"model": folder, "max_tokens": 1, "tools": tools}

        message, _ = await refusal(
            stage, Kind.MESSAGES_RENDER, messages=[{"role": "user", "content": "x"}], **asked
        )

        assert message.startswith('"auto" tool choice requires')
