"""Questions about one picture of shapes, with their answers.

Each `ask_*` function takes a scene and returns plain text, (question, answer).
"""

import random
from collections.abc import Callable

from .drawing import PLACES, SHAPE_COLORS, SHAPES, Item, Scene
from .wording import Pair, count_sentence, description, listed, plural, sentence, with_article

PLACE_WORDS = {
    "top left": ("top left", "top left", "upper left", "top-left"),
    "top right": ("top right", "top right", "upper right", "top-right"),
    "bottom left": ("bottom left", "bottom left", "lower left", "bottom-left"),
    "bottom right": ("bottom right", "bottom right", "lower right", "bottom-right"),
}


def ask_describe(scene: Scene, rng: random.Random) -> Pair:
    question = rng.choice((
        "Describe this image.", "What is in this image?", "Describe the picture.",
        "What do you see?", "What is in the picture?", "What's in this image?",
        "What does the picture show?", "Describe what you see.",
        "Tell me what you see in this picture.", "What can you see in the image?",
        "What is shown here?", "Describe the image in one sentence.", "What is this?",
        "Which shapes are in the picture?", "Please describe this picture.",
    ))  # fmt: skip
    return question, sentence(description(scene))


def ask_count(scene: Scene, rng: random.Random) -> Pair:
    if rng.random() < 0.55:
        question = rng.choice((
            "How many shapes are there?", "Count the shapes.", "How many shapes do you see?",
            "How many shapes are in the picture?", "How many shapes are in this image?",
            "What is the number of shapes?", "How many objects are there?",
        ))  # fmt: skip
        return question, count_sentence(len(scene.items), "shape")
    color, shape = some_item(scene, rng)
    if rng.random() < 0.6:
        noun, count = shape, sum(item.shape == shape for item in scene.items)
    else:
        noun, count = f"{color} shape", sum(item.color == color for item in scene.items)
    question = rng.choice((
        f"How many {noun}s are there?", f"Count the {noun}s.", f"How many {noun}s do you see?",
        f"How many {noun}s are in the picture?",
    ))  # fmt: skip
    return question, count_sentence(count, noun)


def ask_color(scene: Scene, rng: random.Random) -> Pair:
    shape = rng.choice(scene.items).shape if rng.random() < 0.85 else rng.choice(SHAPES)
    spelling = rng.choice(("color", "colour"))
    question = rng.choice((
        f"What {spelling} is the {shape}?", f"Which {spelling} is the {shape}?",
        f"What is the {spelling} of the {shape}?", f"Tell me the {spelling} of the {shape}.",
        f"Which {spelling} does the {shape} have?",
    ))  # fmt: skip
    colors = [item.color for item in scene.items if item.shape == shape]
    if not colors:
        return question, f"There is no {shape}."
    if len(colors) == 1:
        return question, f"The {shape} is {colors[0]}."
    return question, f"There are {plural(len(colors), shape)}: {listed(colors)}."


def ask_place(scene: Scene, rng: random.Random) -> Pair:
    """What is at a position; sometimes the position is empty."""
    cell = rng.choice(scene.items).cell if rng.random() < 0.75 else rng.choice(list(PLACES))
    place = PLACES[cell]
    words = rng.choice(PLACE_WORDS[place])
    question = rng.choice((
        f"What is at the {words}?", f"What is in the {words}?", f"What is in the {words} corner?",
        f"Which shape is at the {words}?", f"What do you see at the {words}?",
        f"What shape is in the {words} corner?", f"What's at the {words}?",
    ))  # fmt: skip
    for item in scene.items:
        if item.cell == cell:
            return question, f"There is {with_article(item.color)} {item.shape} at the {place}."
    return question, f"There is nothing at the {place}."


def ask_where(scene: Scene, rng: random.Random) -> Pair:
    """Where a shape is; sometimes it is absent or there are several."""
    item = rng.choice(scene.items) if rng.random() < 0.85 else random_item(rng)
    if rng.random() < 0.5:
        noun, found = item.shape, [i for i in scene.items if i.shape == item.shape]
    else:
        noun = f"{item.color} {item.shape}"
        found = [i for i in scene.items if (i.color, i.shape) == (item.color, item.shape)]
    question = rng.choice((
        f"Where is the {noun}?", f"Where do you see the {noun}?",
        f"At which position is the {noun}?",
        f"In which corner is the {noun}?",
    ))  # fmt: skip
    if not found:
        return question, f"There is no {noun}."
    places = listed([f"at the {i.place}" for i in found])
    return question, f"The {noun}{'s are' if len(found) > 1 else ' is'} {places}."


def ask_ground(scene: Scene, rng: random.Random) -> Pair:
    spelling = rng.choice(("color", "colour"))
    question = rng.choice((
        f"What {spelling} is the background?", f"What is the background {spelling}?",
        f"Which {spelling} does the background have?", f"What {spelling} is the ground?",
        f"What is the {spelling} of the background?", "What is the background?",
    ))  # fmt: skip
    return question, f"The background is {scene.ground}."


def ask_exists(scene: Scene, rng: random.Random) -> Pair:
    """Whether a shape, a colour or a coloured shape is there; about half of the answers are yes."""
    color, shape = some_item(scene, rng, known=0.5)
    form = rng.random()
    if form < 0.45:
        noun, found = shape, any(item.shape == shape for item in scene.items)
    elif form < 0.6:
        noun, found = f"{color} shape", any(item.color == color for item in scene.items)
    else:
        noun = f"{color} {shape}"
        found = any((item.color, item.shape) == (color, shape) for item in scene.items)
    some = with_article(noun)
    question = rng.choice((
        f"Is there {some}?", f"Do you see {some}?", f"Is there {some} in the picture?",
        f"Can you see {some}?", f"Does the picture show {some}?",
    ))  # fmt: skip
    return question, f"Yes, there is {some}." if found else f"No, there is no {noun}."


def random_item(rng: random.Random) -> Item:
    return Item(rng.choice(list(SHAPE_COLORS)), rng.choice(SHAPES), (0, 0))


def some_item(scene: Scene, rng: random.Random, known: float = 0.75) -> tuple[str, str]:
    """A (colour, shape): from one item, mixed from two items of the scene, or at random."""
    share = rng.random()
    if share < known:
        item = rng.choice(scene.items)
        return item.color, item.shape
    if share < known + (1 - known) / 2:
        return rng.choice(scene.items).color, rng.choice(scene.items).shape
    item = random_item(rng)
    return item.color, item.shape


ONE_PICTURE: tuple[Callable, ...] = (
    ask_describe, ask_count, ask_color, ask_place, ask_where, ask_ground, ask_exists,
)  # fmt: skip
# How often each is asked, in the same order. First the model learns to see, from whole
# descriptions; then to search, from questions that need one shape among several.
SEEING_WEIGHTS = (30, 18, 14, 12, 8, 6, 12)
SEARCHING_WEIGHTS = (10, 19, 17, 6, 22, 4, 22)
