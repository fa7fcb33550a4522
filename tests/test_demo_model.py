"""The demo model's directory, its generator, and a handful of answers by plain transformers."""

import json
import random
import sys
from pathlib import Path

import jinja2
import numpy as np
import pytest
import torch
from PIL import Image

from workers.models import pixels as served_pixels
from workers.models.families.qwen2_vl import smart_resize

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / "models" / "shapes-vl"
EXAMPLES = ROOT / "examples"

sys.path.insert(0, str(ROOT / "tools"))  # the tools are scripts, not a package of the product

import draw_examples  # noqa: E402
from shapes_vl import dialogues, directory, drawing, evaluation, packing, pixels  # noqa: E402
from shapes_vl.batches import BatchMaker, Plan  # noqa: E402
from shapes_vl.drawing import Item, Scene  # noqa: E402
from shapes_vl.network import step_loss  # noqa: E402
from shapes_vl.prompts import Prompter  # noqa: E402
from shapes_vl.questions import ask_color, ask_place, ask_where  # noqa: E402

TWO_STARS = Scene(
    "white",
    (Item("red", "star", (0, 0)), Item("blue", "circle", (0, 1)), Item("black", "star", (1, 0))),
)


def settings(name):
    return json.loads((DIRECTORY / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def prompter():
    return Prompter(DIRECTORY)


@pytest.fixture(scope="module")
def model():
    from transformers import Qwen3VLForConditionalGeneration

    torch.set_num_threads(1)
    return Qwen3VLForConditionalGeneration.from_pretrained(DIRECTORY, dtype=torch.float32).eval()


# --- the directory


def test_directory_is_complete_and_small():
    names = {path.name for path in DIRECTORY.iterdir()}

    assert names == {
        "README.md", "chat_template.jinja", "config.json", "generation_config.json",
        "model.safetensors", "preprocessor_config.json", "tokenizer.json",
        "tokenizer_config.json", "video_preprocessor_config.json",
    }  # fmt: skip
    assert (DIRECTORY / "model.safetensors").stat().st_size <= 8_000_000


def test_configuration_is_that_of_qwen3_vl():
    config = settings("config.json")

    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    assert config["text_config"]["max_position_embeddings"] == 16384


def test_token_ids_of_the_configuration_are_those_of_the_tokenizer(prompter):
    config, generation = settings("config.json"), settings("generation_config.json")
    id_of = prompter.tokenizer.token_to_id

    assert config["image_token_id"] == id_of("<|image_pad|>")
    assert config["video_token_id"] == id_of("<|video_pad|>")
    assert config["vision_start_token_id"] == id_of("<|vision_start|>")
    assert config["vision_end_token_id"] == id_of("<|vision_end|>")
    assert generation["eos_token_id"] == [id_of("<|im_end|>"), id_of("<|endoftext|>")]


def test_written_settings_are_those_of_the_tools(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((DIRECTORY / "tokenizer.json").read_bytes())

    directory.write_settings(tmp_path)

    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DIRECTORY / path.name).read_bytes(), path.name
    assert directory.TEMPLATE.read_bytes() == (DIRECTORY / "chat_template.jinja").read_bytes()


def test_any_text_survives_the_tokenizer(prompter):
    text = "Où est l’étoile? 星は\n\n  12 blue stars <think>\tdone</think> 🙂"

    tokens = prompter.tokenizer.encode(text, add_special_tokens=False).ids

    assert prompter.tokenizer.decode(tokens, skip_special_tokens=False) == text


def test_special_tokens_are_hidden_and_marks_are_shown(prompter):
    tokens = prompter.tokenizer.encode("<think>a</think><tool_call>b</tool_call><|im_end|>").ids

    shown = prompter.tokenizer.decode(tokens, skip_special_tokens=True)

    assert shown == "<think>a</think><tool_call>b</tool_call>"


def test_a_picture_has_at_most_64_tokens():
    edges = range(1, 2100, 61)
    sizes = [(h, w) for h in edges for w in edges if max(h, w) < 200 * min(h, w)]

    assert max(h * w // 1024 for h, w in (pixels.smart_resize(*size) for size in sizes)) <= 64


# --- the chat template


def render(**values):
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        directory.TEMPLATE.read_text("utf-8")
    )
    return template.render(add_generation_prompt=True, **values)


def test_thinking_is_off_unless_it_is_asked_for():
    messages = [{"role": "user", "content": "Hi"}]

    off, on = render(messages=messages), render(messages=messages, enable_thinking=True)

    assert off == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert on == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_history_is_shown_without_thoughts():
    call = {"function": {"name": "report_shapes", "arguments": {"count": 1}}}
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Report."}]},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "tool_calls": [call]},
        {"role": "tool", "content": "ok"},
    ]

    assert render(messages=messages, enable_thinking=True) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Report.<|im_end|>\n"
        '<|im_start|>assistant\nYes.\n<tool_call>\n{"name": "report_shapes", "arguments": '
        '{"count": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# --- the generator


def test_the_same_seed_draws_the_same_picture():
    def picture():
        rng = random.Random(5)
        scene = drawing.random_scene(rng)
        return np.array(drawing.draw(scene, drawing.random_size(rng), rng))

    np.testing.assert_array_equal(picture(), picture())


@pytest.mark.parametrize("kind", drawing.OTHER_KINDS)
def test_pictures_of_another_kind_are_drawn(kind):
    image = drawing.draw(Scene(other=kind), (120, 96), random.Random(1))

    assert (image.size, image.mode) == ((120, 96), "RGB")


def test_sizes_stay_within_the_edges():
    rng = random.Random(2)
    edges = [edge for _ in range(500) for edge in drawing.random_size(rng)]

    assert min(edges) >= drawing.MIN_EDGE
    assert max(edges) <= drawing.MAX_EDGE


def test_items_are_in_reading_order_in_cells_of_their_own():
    rng = random.Random(3)
    for _ in range(100):
        cells = [item.cell for item in drawing.random_scene(rng).items]
        assert cells == sorted(set(cells))


def answers_to(ask, scene):
    rng = random.Random(4)
    return dict(ask(scene, rng) for _ in range(2000))


def test_answers_name_all_shapes_of_a_form():
    answers = answers_to(ask_color, TWO_STARS)

    assert answers["What color is the star?"] == "There are two stars: red and black."
    assert answers["What color is the circle?"] == "The circle is blue."
    assert answers["What color is the square?"] == "There is no square."


def test_answers_know_places():
    assert answers_to(ask_place, TWO_STARS)["What is at the lower right?"] == (
        "There is nothing at the bottom right."
    )
    assert answers_to(ask_where, TWO_STARS)["Where is the star?"] == (
        "The stars are at the top left and at the bottom left."
    )


def test_examples_are_what_the_generator_draws(tmp_path):
    for name, scene in draw_examples.EXAMPLES.items():
        drawn = draw_examples.picture(name, scene)
        with Image.open(EXAMPLES / name) as kept:
            assert kept.size == drawn.size
            if name.endswith(".png"):
                np.testing.assert_array_equal(np.array(kept), np.array(drawn))


# --- pixels and batches


@pytest.mark.parametrize("size", [(96, 96), (128, 128), (333, 250), (250, 333), (1024, 576)])
def test_patches_are_those_of_the_served_preprocessor(size):
    image = drawing.draw(TWO_STARS, size, random.Random(6))
    limits = settings("preprocessor_config.json")["size"]

    patches, (rows, columns) = pixels.patchify(image)

    height, width = smart_resize(
        size[1], size[0], pixels.FACTOR, limits["shortest_edge"], limits["longest_edge"]
    )
    resized = served_pixels.resize(served_pixels.of_image(image), height, width)[0]
    assert (rows * pixels.PATCH, columns * pixels.PATCH) == (height, width)
    first, second = patches[0].view(3, 16, 16), patches[1].view(3, 16, 16)
    assert torch.equal(first, resized[:, :16, :16])
    assert torch.equal(second, resized[:, :16, 16:32])
    below_the_first = patches[2].view(3, 16, 16)
    assert torch.equal(below_the_first, resized[:, 16:32, :16])


def test_the_same_step_makes_the_same_batches(prompter):
    maker = BatchMaker(prompter, Plan(seed=3, seeing_steps=1))

    for first, second in zip(maker.make(1), maker.make(1), strict=True):
        np.testing.assert_array_equal(first.tokens, second.tokens)
        for grid, patches in first.pictures.items():
            np.testing.assert_array_equal(patches, second.pictures[grid])


def test_every_batch_shows_a_picture(prompter):
    """All conversations that are drawn first for this step are without one."""
    maker = BatchMaker(prompter, Plan(seed=0, seeing_steps=1500))

    assert all(batch.pictures for batch in maker.make(3464))


def test_packed_questions_are_learned_as_if_they_stood_alone(model, prompter):
    """The lean forward over shared trunks gives the loss that transformers gives for each alone."""
    rng = random.Random(7)
    scenes = (drawing.random_scene(rng), drawing.random_scene(rng))
    drawn = [drawing.draw(scene, (128, 96 + 32 * n), rng) for n, scene in enumerate(scenes)]
    patched = [(patches.numpy(), grid) for patches, grid in map(pixels.patchify, drawn)]
    group = dialogues.training_group(rng, scenes, tools=False)[:3]
    shown = packing.Pictured(0, [grid for _, grid in patched])
    document = packing.make_document(prompter, group, shown, balanced=False)
    batch = packing.assemble([[document]], len(document.tokens), patched)

    with torch.inference_mode():
        packed = step_loss(model, [batch]).item()
        alone = [loss_alone(model, prompter, example, patched) for example in group]

    total = sum(loss for loss, _ in alone) / sum(count for _, count in alone)
    assert packed == pytest.approx(total, rel=1e-4)


def loss_alone(model, prompter, example, patched):
    """Sum of the loss over the answer, and its number of tokens."""
    sizes = [grid[0] * grid[1] // 4 for _, grid in patched]
    prompt, answer = prompter.prompt_tokens(example, sizes), prompter.answer_tokens(example)
    tokens = torch.tensor([prompt + answer])
    logits = model(
        input_ids=tokens,
        pixel_values=torch.cat([pixels.with_frames(torch.from_numpy(p)) for p, _ in patched]),
        image_grid_thw=torch.tensor([[1, *grid] for _, grid in patched]),
        mm_token_type_ids=(tokens == prompter.image_pad).int(),
    ).logits[0, len(prompt) - 1 : -1]
    loss = torch.nn.functional.cross_entropy(logits, tokens[0, len(prompt) :], reduction="sum")
    return loss.item(), len(answer)


# --- what it says


@pytest.mark.parametrize("kind", dialogues.KINDS)
def test_fresh_questions_are_answered_right(model, prompter, kind):
    """Nine of ten, or there is something wrong; the evaluation measures the accuracy itself."""
    cases = [evaluation.fresh_case(kind, seed=77, number=number) for number in range(10)]

    given = evaluation.answers(model, prompter, cases)

    wrong = [
        (case.example, text)
        for text, case in zip(given, cases, strict=True)
        if text != case.example.answer
    ]
    assert len(wrong) <= 1, wrong


ASKED = [
    (
        ["shapes.png"],
        "Describe this image.",
        "A red circle at the top left and a blue star at the bottom right on a white background.",
    ),
    (["four-shapes.jpg"], "How many stars are there?", "There are two stars."),
    (["wide.png"], "Where is the black circle?", "The black circle is at the bottom left."),
    (
        ["pair-first.png", "pair-second.png"],
        "Which picture has more shapes?",
        "The first picture has more shapes: three against one.",
    ),
    (["clouds.jpg"], "What do you see?", "I only know pictures of coloured shapes."),
    ([], "Hello!", "Please send me a picture of coloured shapes, and ask me about it."),
]


@pytest.mark.parametrize(("names", "question", "answer"), ASKED)
def test_examples_are_answered_as_their_readme_says(model, prompter, names, question, answer):
    content = [*({"type": "image"} for _ in names), {"type": "text", "text": question}]
    example = dialogues.Example(({"role": "user", "content": content},), answer)
    pictures = [pixels.patchify(Image.open(EXAMPLES / name)) for name in names]

    assert evaluation.answers(model, prompter, [evaluation.Case("", example, pictures)]) == [answer]
