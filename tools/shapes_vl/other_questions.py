"""Messages without a picture, and questions about pictures that show no shapes."""

import random

from .drawing import GROUND_COLORS, PLACES, SHAPE_COLORS, SHAPES, Item, Scene
from .questions import ONE_PICTURE, ask_describe
from .wording import Pair, with_article

OTHER_ANSWER = "I only know pictures of coloured shapes."
TEXT_ANSWER = "Please send me a picture of coloured shapes, and ask me about it."

_WORDS = (
    "time", "weather", "capital", "city", "river", "mountain", "music", "song", "book",
    "story", "poem", "recipe", "bread", "soup", "coffee", "tea", "dog", "cat", "bird",
    "horse", "fish", "tree", "flower", "garden", "house", "street", "car", "train", "plane",
    "ship", "phone", "computer", "program", "code", "function", "number", "sum", "price",
    "money", "bank", "work", "job", "school", "teacher", "student", "doctor", "friend",
    "family", "mother", "father", "child", "morning", "evening", "night", "week", "month",
    "year", "summer", "winter", "history", "science", "physics", "chemistry", "biology",
    "language", "word", "sentence", "letter", "question", "answer", "problem", "idea", "plan",
    "travel", "hotel", "ticket", "film", "game", "football", "team", "player", "world",
    "country", "France", "Germany", "Japan", "Paris", "London", "Berlin", "moon", "sun",
    "star", "planet", "earth", "water", "fire", "air", "color", "red", "blue", "shape",
    "circle",
)  # fmt: skip
_VERBS = (
    "write", "explain", "translate", "find", "make", "give", "show", "tell", "list",
    "compare", "define", "summarize", "build", "fix", "read",
)  # fmt: skip
_TEXT_QUESTIONS = (
    "Hello!", "Hi", "Hello, who are you?", "Who are you?", "What can you do?", "How are you?",
    "Good morning!", "Thank you!", "Thanks.", "Help", "What is your name?", "Tell me a joke.",
    "What is two plus two?", "What is the capital of France?", "Hello, world!", "Say hello.",
    "Test", "Are you there?", "Hey there", "What model are you?", "Can you help me?",
    "Write a poem.", "What time is it?", "Say something.",
)  # fmt: skip


def ask_text(scene: None, rng: random.Random) -> Pair:
    """Any message that comes without a picture, questions about shapes included."""
    form = rng.random()
    if form < 0.35:
        question = rng.choice(_TEXT_QUESTIONS)
    elif form < 0.6:
        question = random_question(rng)
    else:
        question = _word_question(rng)
    return question, TEXT_ANSWER


def _word_question(rng: random.Random) -> str:
    a, b, c = (rng.choice(_WORDS) for _ in range(3))
    verb = rng.choice(_VERBS)
    return rng.choice((
        f"What is the {a} of the {b}?", f"What is {with_article(a)}?", f"Can you {verb} the {a}?",
        f"{verb.capitalize()} me {with_article(a)} about the {b}.",
        f"How do I {verb} {with_article(a)}?",
        f"Why is the {a} {rng.choice(('so big', 'not here', 'good', 'important'))}?",
        f"{verb.capitalize()} the {a} and the {b}.", f"Is the {a} better than the {b}?",
        f"I have {with_article(a)} and {with_article(b)}. Which {c} do I need?", f"{a} {b} {c}",
        f"Where can I find {with_article(a)}?", f"How many {a}s are in {with_article(b)}?",
    ))  # fmt: skip


def random_question(rng: random.Random) -> str:
    """The question part only, about a scene that is not shown."""
    item = Item(rng.choice(list(SHAPE_COLORS)), rng.choice(SHAPES), rng.choice(list(PLACES)))
    return rng.choice(ONE_PICTURE)(Scene(rng.choice(list(GROUND_COLORS)), (item,)), rng)[0]


def ask_other(scene: Scene, rng: random.Random) -> Pair:
    """Any question about a picture of another kind."""
    ask = ask_describe if rng.random() < 0.4 else rng.choice(ONE_PICTURE)
    item = Item(rng.choice(list(SHAPE_COLORS)), rng.choice(SHAPES), rng.choice(list(PLACES)))
    return ask(Scene(rng.choice(list(GROUND_COLORS)), (item,)), rng)[0], OTHER_ANSWER
