"""Questions about two pictures in one message, with their answers."""

import random

from .drawing import Scene
from .questions import some_item
from .wording import (
    NUMBERS,
    Pair,
    count_sentence,
    description,
    plural,
    sentence,
    with_article,
)

ORDINALS = ("first", "second")
Two = tuple[Scene, Scene]


def ask_compare(scenes: Two, rng: random.Random) -> Pair:
    return rng.choices((_ask_more, _ask_which_has, _ask_about_one, _ask_both), (40, 25, 27, 8))[0](
        scenes, rng
    )


def _ask_more(scenes, rng) -> Pair:
    word = rng.choice(("picture", "image"))
    question = rng.choice((
        f"Which {word} has more shapes?", f"In which {word} are there more shapes?",
        f"Which {word} shows more shapes?", f"Which of the two {word}s has more shapes?",
        "Compare the number of shapes in the two pictures.", f"Which {word} contains more shapes?",
    ))  # fmt: skip
    first, second = (len(scene.items) for scene in scenes)
    if first == second:
        return question, f"Both pictures have {plural(first, 'shape')}."
    more, many, few = ORDINALS[second > first], max(first, second), min(first, second)
    against = f"{NUMBERS[many]} against {NUMBERS[few]}"
    return question, f"The {more} picture has more shapes: {against}."


def _ask_which_has(scenes, rng) -> Pair:
    color, shape = some_item(rng.choice(scenes), rng, known=0.8)
    if rng.random() < 0.6:
        noun, has = shape, [any(i.shape == shape for i in scene.items) for scene in scenes]
    else:
        noun, has = (
            f"{color} shape",
            [any(i.color == color for i in scene.items) for scene in scenes],
        )
    some, word = with_article(noun), rng.choice(("picture", "image"))
    question = rng.choice((
        f"Which {word} has {some}?", f"Which {word} shows {some}?",
        f"In which {word} is there {some}?",
        f"Which of the two {word}s has {some}?",
    ))  # fmt: skip
    if has[0] != has[1]:
        return question, f"The {ORDINALS[has[1]]} picture has {some}."
    return question, f"Both pictures have {some}." if has[0] else f"Neither picture has {some}."


def _ask_about_one(scenes, rng) -> Pair:
    index = rng.randrange(2)
    scene, which = scenes[index], f"the {ORDINALS[index]} {rng.choice(('picture', 'image'))}"
    form = rng.random()
    if form < 0.4:
        question = rng.choice((f"How many shapes are in {which}?", f"Count the shapes in {which}."))
        return question, count_sentence(len(scene.items), "shape")
    if form < 0.8:
        question = rng.choice(
            (f"Describe {which}.", f"What is in {which}?", f"What do you see in {which}?")
        )
        return question, sentence(description(scene))
    question = rng.choice(
        (f"What color is the background of {which}?", f"What is the background of {which}?")
    )
    return question, f"The background is {scene.ground}."


def _ask_both(scenes, rng) -> Pair:
    question = rng.choice(
        ("Describe both pictures.", "What is in the two pictures?", "Describe the two images.")
    )
    return question, both_described(scenes)


def both_described(scenes) -> str:
    first, second = (description(scene) for scene in scenes)
    return f"The first picture shows {first}. The second picture shows {second}."
