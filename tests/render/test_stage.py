"""What the stage leaves in a job, kind by kind."""

import base64
import json
from typing import Any

import pytest

from runtime.errors import SettingsError
from schemas.envelope import PROMPTS, Base64Of, Item, kwargs_part, metadata_part
from schemas.errors import ApiError
from schemas.routes import Kind
from tests.render.builders import (
    DATA,
    FakeMedia,
    answer,
    body_of,
    chat,
    image,
    make_job,
    start_stage,
    user,
)
from workers.render.stage import RenderStage

QWEN = "tiny-qwen3-vl"


@pytest.fixture
async def stage() -> RenderStage:
    return await start_stage(QWEN, media=FakeMedia(limit=8))


async def test_tensors_are_holes_in_the_body(stage: RenderStage) -> None:
    job = make_job(Kind.CHAT_RENDER, {"messages": [user(image("ab"), "x", image("cde"))]})

    await stage.process(job)

    outcome = job.envelope.outcome
    assert outcome is not None
    assert [type(segment) for segment in outcome.segments] == [
        bytes, Base64Of, bytes, Base64Of, bytes,
    ]  # fmt: skip
    features = json.loads(await body_of(outcome, job))["features"]
    assert features["mm_hashes"] == {"image": ["hash-of-ab", "hash-of-cde"]}
    assert [p["length"] for p in features["mm_placeholders"]["image"]] == [2, 3]
    tensors = [base64.b64decode(data) for data in features["kwargs_data"]["image"]]
    assert tensors == [b"tensors of ab", b"tensors of cde"]
    assert [base64.b64decode(d) for d in features["mm_metadata"]["image"]] == [b"metadata"] * 2


@pytest.mark.parametrize("field", [{"mm_payload": "none"}, {"return_mm_kwargs": False}])
async def test_without_tensors_nothing_is_stored(stage: RenderStage, field: Any) -> None:
    job = make_job(Kind.CHAT_RENDER, {"messages": [user(image("ab"))], **field})

    await stage.process(job)

    outcome = job.envelope.outcome
    assert outcome is not None
    assert [type(segment) for segment in outcome.segments] == [bytes]
    assert job.blob_bytes == 0
    features = json.loads(outcome.segments[0])["features"]
    assert (features["kwargs_data"], features["mm_metadata"]) == (None, None)


async def test_modalities_interleave_and_keep_their_own_order(stage: RenderStage) -> None:
    video = {"type": "video_url", "video_url": {"url": "vvvv"}}

    rendered = await chat(stage, [user(image("a"), video, image("bb"))])

    places = rendered["features"]["mm_placeholders"]
    assert [p["length"] for p in places["image"]] == [1, 2]
    assert [p["length"] for p in places["video"]] == [4]
    offsets = [places["image"][0], places["video"][0], places["image"][1]]
    assert sorted(p["offset"] for p in offsets) == [p["offset"] for p in offsets]


async def test_a_chat_on_its_way_carries_prompts_items_and_parts(stage: RenderStage) -> None:
    body = {"messages": [user(image("ab"), "x", image("ab"))]}
    job = make_job(Kind.CHAT, body, request_id="mine")

    await stage.process(job)

    (prompt,) = await job.read_msgpack(PROMPTS)
    assert job.envelope.outcome is None
    assert prompt["request_id"] == "chatcmpl-mine"
    assert prompt["prompt_text"].startswith("<|im_start|>user\n<|vision_start|><|image_pad|>")
    assert set(prompt["features"]) == {"mm_hashes", "mm_placeholders"}
    first, second = job.envelope.items
    assert first == Item(
        modality="image", mm_hash="hash-of-ab", offset=first.offset, length=2, embeds=None
    )
    assert second.offset > first.offset + 1
    assert await job.read(kwargs_part("image", "hash-of-ab")) == b"tensors of ab"
    assert await job.read(metadata_part("image", "hash-of-ab")) == b"metadata"


async def test_completions_on_their_way_say_their_limit(stage: RenderStage) -> None:
    """A limit of 16 is left out of a rendered body; its absence means something else later."""
    job = make_job(Kind.COMPLETION, {"prompt": ["a", "b"]})

    await stage.process(job)

    prompts = await job.read_msgpack(PROMPTS)
    assert [prompt["sampling_params"]["max_tokens"] for prompt in prompts] == [16, 16]
    assert [prompt["prompt_text"] for prompt in prompts] == ["a", "b"]
    _, rendered = await answer(stage, "/v1/completions/render", {"prompt": "a"})
    assert "max_tokens" not in rendered[0]["sampling_params"]


async def test_echoed_ids_are_told_as_text(stage: RenderStage) -> None:
    job = make_job(Kind.COMPLETION, {"prompt": [39, 72], "echo": True})

    await stage.process(job)

    (prompt,) = await job.read_msgpack(PROMPTS)
    assert prompt["prompt_text"] == "Hi"


async def test_processing_twice_gives_the_same(stage: RenderStage) -> None:
    job = make_job(Kind.CHAT, {"messages": [user("x", image("ab"))], "request_id": "r"})

    await stage.process(job)
    first = await job.read_msgpack(PROMPTS), list(job.envelope.items)
    await stage.process(job)

    assert first == (await job.read_msgpack(PROMPTS), job.envelope.items)


async def test_a_picture_must_not_be_cut(stage: RenderStage) -> None:
    body = {"messages": [user(image("a" * 30))], "truncate_prompt_tokens": 20}

    status, refused = await answer(stage, "/v1/chat/completions/render", body)

    assert (status, refused["error"]["param"]) == (400, "truncate_prompt_tokens")
    assert "image item, which spans tokens" in refused["error"]["message"]


@pytest.mark.parametrize(("side", "number"), [("left", 1), ("right", 2), (None, 1)])
async def test_truncation_that_removes_a_picture_names_it(
    stage: RenderStage, side: str | None, number: int
) -> None:
    content = [image("ab"), *["long text here"] * 30, image("cd")]
    body = {"messages": [user(*content)], "truncate_prompt_tokens": 60, "truncation_side": side}

    status, refused = await answer(stage, "/v1/chat/completions/render", body)

    assert (status, refused["error"]["param"]) == (400, "truncate_prompt_tokens")
    assert f"a(n) image item, number {number} of 2" in refused["error"]["message"]


async def test_a_picture_in_a_text_too_long_to_be_tokenized_is_named_too() -> None:
    stage = await start_stage(QWEN, "--max-model-len 64", media=FakeMedia())
    body = {
        "messages": [user(image("ab"), "x " * 20_000)],
        "truncate_prompt_tokens": 60,
        "truncation_side": "left",
    }

    status, refused = await answer(stage, "/v1/chat/completions/render", body)

    assert (status, refused["error"]["param"]) == (400, "truncate_prompt_tokens")
    assert "number 1 of 1" in refused["error"]["message"]


async def test_responses_of_a_template_that_writes_bos_have_one() -> None:
    stage = await start_stage("llama3-render")
    bos = stage._running.tokenizer.bos_id

    counts = []
    for url, body in (
        ("/v1/responses/render", {"input": "hi"}),
        ("/v1/chat/completions/render", {"messages": [user("hi")]}),
        (
            "/v1/messages/render",
            {"model": "llama3-render", "max_tokens": 1, "messages": [user("hi")]},
        ),
    ):
        status, rendered = await answer(stage, url, body)
        assert status == 200
        counts.append(rendered["token_ids"].count(bos))

    assert counts == [1, 1, 1]


async def test_truncation_moves_what_stays(stage: RenderStage) -> None:
    messages = [user("one two three four", image("ab"))]
    whole = await chat(stage, messages)
    length = len(whole["token_ids"]) - 3

    cut = await chat(stage, messages, truncate_prompt_tokens=length, truncation_side="left")

    assert cut["token_ids"] == whole["token_ids"][3:]
    (before,), (after,) = (r["features"]["mm_placeholders"]["image"] for r in (whole, cut))
    assert after == {"offset": before["offset"] - 3, "length": before["length"]}


async def test_a_prompt_that_media_make_too_long_is_refused() -> None:
    stage = await start_stage(QWEN, "--max-model-len 64", media=FakeMedia())

    status, refused = await answer(
        stage, "/v1/chat/completions/render", {"messages": [user(image("a" * 99))]}
    )

    assert (status, refused["error"]["param"]) == (400, None)
    assert "exceeds model's maximum context length (64)" in refused["error"]["message"]


async def test_options_for_media_need_trust(stage: RenderStage) -> None:
    body = {"messages": [user("x")], "mm_processor_kwargs": {"max_pixels": 1}}

    status, refused = await answer(stage, "/v1/chat/completions/render", body)

    assert (status, refused["error"]["param"]) == (400, "mm_processor_kwargs")
    assert await chat(stage, [user("x")], mm_processor_kwargs={}, request_id="r")


async def test_completions_may_not_change_how_media_are_treated_either(stage: RenderStage) -> None:
    body = {"prompt": "x", "media_io_kwargs": {"image": {"image_mode": "L"}}}

    status, refused = await answer(stage, "/v1/completions/render", body)

    assert (status, refused["error"]["param"]) == (400, "media_io_kwargs")


async def test_tools_among_the_template_kwargs_replace_those_of_the_request(
    stage: RenderStage,
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    common = {"tool_choice": "none", "request_id": "r"}

    without = await chat(stage, [user("x")], request_id="r")
    replaced = await chat(
        stage, [user("x")], tools=tools, chat_template_kwargs={"tools": []}, **common
    )
    given = await chat(stage, [user("x")], tools=tools, **common)

    assert replaced["token_ids"] == without["token_ids"] != given["token_ids"]


async def test_a_template_that_is_told_to_tokenize_gives_no_offsets(stage: RenderStage) -> None:
    rendered = await chat(
        stage, [user("x")], return_token_offsets=True, chat_template_kwargs={"tokenize": True}
    )

    assert rendered["token_offsets"] is None


async def test_templates_of_requests_need_trust(stage: RenderStage) -> None:
    for fields in ({"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}):
        body = {"messages": [user("x")], **fields}

        status, refused = await answer(stage, "/v1/chat/completions/render", body)

        assert status == 400
        assert "untrusted chat template" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("auto", '"auto" tool choice requires --enable-auto-tool-choice'),
        ("required", 'tool_choice="required" requires --tool-call-parser'),
        ({"type": "function", "function": {"name": "f"}}, 'tool_choice=function "f" requires'),
    ],
)
async def test_calls_need_a_parser(stage: RenderStage, choice: Any, message: str) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [user("x")], "tools": [tool], "tool_choice": choice}

    status, refused = await answer(stage, "/v1/chat/completions/render", body)

    assert status == 400
    assert message in refused["error"]["message"]


async def test_the_generation_config_may_be_overridden() -> None:
    override = {"max_new_tokens": 50, "temperature": 0.5}
    stage = await start_stage(QWEN, override_generation_config=override)

    rendered = await chat(stage, [user("x")], max_tokens=100)

    assert rendered["sampling_params"]["max_tokens"] == 50
    assert rendered["sampling_params"]["temperature"] == 0.5


async def test_long_texts_render_in_a_thread(stage: RenderStage) -> None:
    rendered = await chat(stage, [user("word " * 500)])

    assert len(rendered["token_ids"]) > 500


async def test_lone_surrogates_are_refused(stage: RenderStage) -> None:
    for url, body in (
        ("/v1/chat/completions/render", {"messages": [user("\ud800")]}),
        ("/v1/completions/render", {"prompt": ["a", "\ud800"]}),
        ("/tokenize", {"prompt": "\ud800"}),
    ):
        status, refused = await answer(stage, url, body)

        assert status == 400
        assert "surrogates" in refused["error"]["message"]


async def test_integers_beyond_64_bits_come_through(stage: RenderStage) -> None:
    rendered = await chat(stage, [user("x")], chat_template_kwargs={"big": 2**70})

    assert rendered["parse_context"]["chat_template_kwargs"]["big"] == 2**70


async def test_a_broken_server_template_ends_the_start() -> None:
    with pytest.raises(SettingsError, match="chat template cannot be used"):
        await start_stage(QWEN, chat_template="{% for %}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tool-call-parser mistral",), r"\[TOOL_CALLS\]"),
        (("--tool-call-parser llama3_json",), "python_tag"),
        (("--tool-call-parser nope",), "known are"),
        ((), "requires --tool-call-parser"),
    ],
)
async def test_a_tool_parser_that_cannot_work_ends_the_start(
    flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        await start_stage(QWEN, "--enable-auto-tool-choice", *flags)


async def test_derender_gets_tools_as_parsers_leave_them() -> None:
    stage = await start_stage(QWEN, "--enable-auto-tool-choice", "--tool-call-parser pythonic")
    parameters = {"type": "object", "$defs": {"A": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]

    free = await chat(stage, [user("x")], tools=tools)
    held = await chat(stage, [user("x")], tools=tools, tool_choice="required")

    assert free["parse_context"]["tools"][0]["function"]["parameters"] == parameters
    assert held["parse_context"]["tools"][0]["function"]["parameters"] == {"type": "object"}


async def test_a_model_without_template_refuses_chats_only(tmp_path: Any) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((DATA / "models" / QWEN / name).read_bytes())
    stage = await start_stage(str(tmp_path))

    status, refused = await answer(stage, "/v1/chat/completions/render", {"messages": [user("x")]})

    assert status == 400
    assert "default chat template is no longer allowed" in refused["error"]["message"]
    assert (await answer(stage, "/v1/completions/render", {"prompt": "x"}))[0] == 200


async def test_closing_is_safe_at_any_time() -> None:
    stage = await start_stage(QWEN)

    await stage.close()
    await stage.close()


async def test_refusals_are_api_errors(stage: RenderStage) -> None:
    with pytest.raises(ApiError):
        await stage.process(make_job(Kind.CHAT_RENDER, b"{"))
