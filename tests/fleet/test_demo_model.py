"""The demo model through the whole fleet: answers are right, not recorded.

Pictures are drawn here, with the generator that drew the training pictures and seeds it never saw.
"""

import base64
import io
import json
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.settings import (
    EngineSettings,
    FleetSettings,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)
from schemas.mm_item import decode_item
from tests.fleet.asking import CHAT
from tests.fleet.embedded import Embedded, Running
from tokenfleet.demo_model import demo_model
from tokenfleet.plan import WHOLE_FLEET, Plan, checked

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # the tools are scripts, not a package of the product

from shapes_vl import drawing  # noqa: E402
from shapes_vl.drawing import Item, Scene  # noqa: E402
from shapes_vl.wording import description, sentence  # noqa: E402

SCENES = [
    Scene("white", (Item("red", "circle", (0, 0)),)),
    Scene("gray", (Item("blue", "square", (0, 1)), Item("yellow", "star", (1, 0)))),
    Scene("pink", (Item("green", "triangle", (0, 0)), Item("black", "circle", (1, 1)))),
    Scene("light blue", (Item("purple", "star", (0, 1)), Item("orange", "square", (1, 1)))),
    Scene("white", (Item("yellow", "triangle", (1, 0)),)),
    Scene("pink", (Item("red", "star", (0, 0)), Item("red", "square", (0, 1)))),
    Scene("gray", (Item("purple", "circle", (0, 0)), Item("green", "star", (1, 0)))),
    Scene("white", (Item("black", "square", (1, 0)), Item("blue", "triangle", (1, 1)))),
    Scene("light blue", (Item("orange", "circle", (0, 1)),)),
    Scene(
        "white",
        (
            Item("red", "triangle", (0, 0)),
            Item("green", "circle", (0, 1)),
            Item("blue", "star", (1, 0)),
        ),
    ),
]
ASKED = ("How many shapes are there?", "What color is the background?")
ONE_RED_CIRCLE, TWO_SHAPES, THREE_SHAPES = SCENES[0], SCENES[1], SCENES[9]
REPORT_SHAPES = {
    "type": "function",
    "function": {
        "name": "report_shapes",
        "description": "Report the shapes in a picture.",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer"},
                "colors": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["count", "colors"],
        },
    },
}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Embedded]:
    plan = Plan(
        roles=WHOLE_FLEET,
        fleet=FleetSettings(),
        model=ModelSettings(model=str(demo_model()), dtype="float32", served_model_name=("m",)),
        render=RenderSettings(render_threads=1),
        engine=EngineSettings(ec=f"directory://{tmp_path}", engine_threads=1),
        ingress=IngressSettings(port=0),
        health=HealthSettings(),
        is_scale_out=True,
    )
    async with Running(checked(plan), tmp_path) as running:
        yield running


def part(scene: Scene, *, size=(160, 160), form="PNG") -> dict:
    image = drawing.draw(scene, size, random.Random(f"{scene} {size}"))
    file = io.BytesIO()
    image.save(file, form, **({"quality": 70} if form == "JPEG" else {}))
    data = base64.b64encode(file.getvalue()).decode()
    url = f"data:image/{form.lower()};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def question(text: str, *parts: dict, **options: object) -> dict:
    content = [*parts, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    return {"model": "m", "messages": messages, "max_tokens": 128, "temperature": 0, **options}


async def test_ten_pictures_are_described_right(fleet):
    sizes = [(160, 160), (96, 96), (320, 240), (512, 512), (200, 300)]

    for number, scene in enumerate(SCENES):
        size, form = sizes[number % len(sizes)], ("PNG", "JPEG")[number % 2]
        said = await fleet.say(question("Describe this image.", part(scene, size=size, form=form)))
        assert said == sentence(description(scene))


async def test_two_pictures_in_one_message_are_compared(fleet):
    more, fewer = part(THREE_SHAPES), part(ONE_RED_CIRCLE)

    first = await fleet.say(question("Which picture has more shapes?", more, fewer))
    second = await fleet.say(question("Which picture has more shapes?", fewer, more))

    assert first == "The first picture has more shapes: three against one."
    assert second == "The second picture has more shapes: three against one."


async def test_a_tool_that_is_offered_and_asked_for_is_called(fleet):
    # Without a parser the call stays in the content; "none" leaves the tools in the template.
    asked = question("Report the shapes.", part(TWO_SHAPES), tools=[REPORT_SHAPES])

    said = await fleet.say(asked | {"tool_choice": "none"})

    call = json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call == {
        "name": "report_shapes",
        "arguments": {"count": 2, "colors": ["blue", "yellow"]},
    }


async def test_thinking_comes_before_the_answer(fleet):
    asked = question("How many shapes are there?", part(TWO_SHAPES))

    said = await fleet.say(asked | {"chat_template_kwargs": {"enable_thinking": True}})

    thought, answer = said.split("</think>")
    assert thought.startswith("<think>")
    assert "blue square" in thought
    assert answer.strip() == "There are two shapes."


async def test_a_picture_of_another_kind_and_no_picture_are_told_apart(fleet):
    other = part(Scene(other="checkerboard"))

    assert await fleet.say(question("Describe this image.", other)) == (
        "I only know pictures of coloured shapes."
    )
    assert "send me a picture" in await fleet.say(question("Hello!"))


async def test_a_follow_up_is_about_the_same_picture(fleet):
    first = question("How many shapes are there?", part(TWO_SHAPES))
    said = await fleet.say(first)

    history = [
        *first["messages"],
        {"role": "assistant", "content": said},
        {"role": "user", "content": "What color is the star?"},
    ]
    answer = await fleet.ask(CHAT, first | {"messages": history})

    assert answer["choices"][0]["message"]["content"] == "The star is yellow."


async def test_answers_follow_the_embeddings(fleet):
    """With the cache entries of two pictures swapped, the answers swap."""
    ask = "Describe this image."
    pictures = [part(ONE_RED_CIRCLE), part(TWO_SHAPES)]
    said = [await fleet.say(question(ask, picture)) for picture in pictures]
    rendered = [await fleet.ask(f"{CHAT}/render", question(ask, picture)) for picture in pictures]
    files = [fleet.entry(r["features"]["mm_hashes"]["image"][0]) for r in rendered]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        file.write_bytes(content)

    swapped = [await fleet.say(question(ask, picture)) for picture in pictures]

    assert said == [sentence(description(ONE_RED_CIRCLE)), sentence(description(TWO_SHAPES))]
    assert swapped == said[::-1]


async def test_tokens_are_those_of_transformers_own_generate(fleet):
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    model = Qwen3VLForConditionalGeneration.from_pretrained(demo_model(), dtype=torch.float32)
    for scene, text in zip(SCENES[:3], ("Describe this image.", *ASKED), strict=True):
        asked = question(text, part(scene), return_token_ids=True)
        rendered = await fleet.ask(f"{CHAT}/render", asked)
        answer = await fleet.ask(CHAT, asked)

        fields = decode_item(base64.b64decode(rendered["features"]["kwargs_data"]["image"][0]))
        pixels = torch.tensor(fields["pixel_values"].data.data, dtype=torch.uint8).float()
        grid = torch.frombuffer(bytearray(fields["image_grid_thw"].data.data), dtype=torch.int64)
        ids = torch.tensor([rendered["token_ids"]])
        generated = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=(pixels / 127.5 - 1).view(fields["pixel_values"].data.shape),
            image_grid_thw=grid[None],
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
            max_new_tokens=128,
            do_sample=False,
        )
        assert generated[0, ids.shape[1] :].tolist() == answer["choices"][0]["token_ids"]
