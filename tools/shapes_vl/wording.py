"""English phrases the answers are made of. Knows no question."""

from .drawing import Scene

NUMBERS = ("no", "one", "two", "three", "four")

Pair = tuple[str, str]  # question and answer


def with_article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def plural(count: int, noun: str) -> str:
    """'one star', 'two stars', 'no star'."""
    return f"{NUMBERS[count]} {noun}" + ("s" if count > 1 else "")


def listed(parts: list[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def description(scene: Scene) -> str:
    """The items in reading order and the ground, without a capital or a full stop."""
    items = [f"{with_article(item.color)} {item.shape} at the {item.place}" for item in scene.items]
    return f"{listed(items)} on a {scene.ground} background"


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def count_sentence(count: int, noun: str) -> str:
    return f"There {'are' if count > 1 else 'is'} {plural(count, noun)}."
