"""Puts questions into conversations: system message, tools, earlier turns, thinking."""

import json
import random
from dataclasses import dataclass

from .comparisons import ask_compare, both_described
from .drawing import Scene
from .other_questions import OTHER_ANSWER, ask_other, ask_text
from .questions import (
    ONE_PICTURE,
    SEEING_WEIGHTS,
    ask_color,
    ask_count,
    ask_describe,
    ask_exists,
    ask_ground,
    ask_place,
    ask_where,
)
from .tools import ask_tool, other_tool, report_tool
from .wording import Pair, description, plural

SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant that answers questions about pictures.",
    "Answer briefly.",
    "You answer questions about images.",
    "Be polite and precise.",
    "You are ShapesVL.",
)

Weights = tuple[int, ...]  # one for each of ONE_PICTURE


@dataclass(frozen=True)
class Example:
    """One conversation that ends with the wanted answer. Picture parts are `{"type": "image"}`."""

    messages: tuple[dict, ...]
    answer: str
    tools: tuple[dict, ...] = ()
    thinking: bool = False


@dataclass(frozen=True)
class Setting:
    """What the examples of one group share, so that their prompts begin alike."""

    scenes: tuple[Scene, ...]
    system: str
    tools: tuple[dict, ...]
    history: tuple[Pair, ...]
    order: str  # "pictures first", "text first" or "text between"
    separator: str


KINDS = (
    "describe", "count", "color", "place", "where", "ground", "exists", "compare", "tool", "think",
    "follow-up", "other", "text",
)  # fmt: skip
_ASK = {
    "describe": ask_describe, "count": ask_count, "color": ask_color, "place": ask_place,
    "where": ask_where, "ground": ask_ground, "exists": ask_exists, "tool": ask_tool,
    "other": ask_other, "text": ask_text,
}  # fmt: skip


def random_setting(
    rng: random.Random, scenes: tuple[Scene, ...], tools: bool, turns: int
) -> Setting:
    system = rng.choice(SYSTEM_TEXTS) if rng.random() < 0.35 else ""
    offered: tuple[dict, ...] = ()
    if tools:
        offered = (report_tool(rng),)
        if rng.random() < 0.2:
            offered = tuple(rng.sample((*offered, other_tool(rng)), 2))
    history = tuple(_any_pair(rng, scenes) for _ in range(turns))
    order = "pictures first" if rng.random() < 0.65 else "text first"
    if len(scenes) == 2 and rng.random() < 0.1:
        order = "text between"
    return Setting(scenes, system, offered, history, order, rng.choice(("", "", "", "", "\n", " ")))


def example(rng: random.Random, setting: Setting, pair: Pair, thinking: bool) -> Example:
    """The conversation of `setting` with one more question."""
    question, answer = pair
    turns = [*setting.history, (_as_typed(question, rng), "")]
    messages: list[dict] = []
    if setting.system:
        messages.append({"role": "system", "content": setting.system})
    for index, (asked, answered) in enumerate(turns):
        content = _content(asked, setting) if index == 0 and setting.scenes else asked
        messages.append({"role": "user", "content": content})
        if answered:
            messages.append({"role": "assistant", "content": answered})
    if thinking:
        answer = f"<think>\n{_thought(setting.scenes)}\n</think>\n\n{answer}"
    return Example(tuple(messages), answer, setting.tools, thinking)


def tool_result_example(rng: random.Random, setting: Setting) -> Example:
    """The turn after a tool call: the tool has answered, the model says what it did."""
    scene = setting.scenes[0]
    question, call = ask_tool(scene, rng)
    start = example(rng, setting, (question, ""), thinking=False).messages
    function = json.loads(call.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    result = rng.choice(("ok", "done", '{"ok": true}', '{"status": "saved"}', "saved", "true"))
    messages = (
        *start,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "content": result},
    )
    return Example(messages, f"I reported {plural(len(scene.items), 'shape')}.", setting.tools)


def training_group(
    rng: random.Random, scenes: tuple[Scene, ...], tools: bool, weights: Weights = SEEING_WEIGHTS
) -> list[Example]:
    """Several examples about the same pictures; most of them share the beginning of the prompt."""
    turns = rng.choice((1, 1, 2)) if rng.random() < 0.15 else 0
    setting = random_setting(rng, scenes, tools, turns)
    group = []
    for _ in range(_group_size(setting)):
        pair = _any_pair(rng, scenes, setting.tools, weights)
        group.append(example(rng, setting, pair, thinking=rng.random() < 0.12))
    if tools and scenes and not scenes[0].other and rng.random() < 0.2:
        group.append(tool_result_example(rng, setting))
    return group


def _group_size(setting: Setting) -> int:
    """Many questions where they share the pictures in the prompt, few where they do not."""
    if setting.scenes and setting.scenes[0].other:
        return 3
    return 6 if setting.order == "pictures first" or setting.history else 2


def evaluation_example(rng: random.Random, kind: str, scenes: tuple[Scene, ...]) -> Example:
    """One fresh question of `kind`."""
    tools = kind == "tool" or rng.random() < 0.1
    turns = rng.choice((1, 2)) if kind == "follow-up" else 0
    setting = random_setting(rng, scenes, tools, turns)
    if kind == "compare":
        pair = ask_compare(scenes, rng)  # type: ignore[arg-type]
    elif kind in _ASK:
        pair = _ASK[kind](scenes[0] if scenes else None, rng)
    else:
        pair = _any_pair(rng, scenes, setting.tools)
    return example(rng, setting, pair, thinking=kind == "think")


def scene_count(kind: str) -> int:
    """How many pictures a question of `kind` shows."""
    return {"compare": 2, "text": 0}.get(kind, 1)


def _any_pair(
    rng: random.Random,
    scenes: tuple[Scene, ...],
    tools: tuple[dict, ...] = (),
    weights: Weights = SEEING_WEIGHTS,
) -> Pair:
    if not scenes:
        return ask_text(None, rng)
    if len(scenes) == 2:
        return ask_compare(scenes, rng)  # type: ignore[arg-type]
    if scenes[0].other:
        ask = ask_tool if tools and rng.random() < 0.3 else ask_other
        return ask(scenes[0], rng)[0], OTHER_ANSWER
    if tools and rng.random() < 0.5:
        return ask_tool(scenes[0], rng)
    return rng.choices(ONE_PICTURE, weights)[0](scenes[0], rng)


def _thought(scenes: tuple[Scene, ...]) -> str:
    """What the model writes between the think marks: what it sees, before it answers."""
    if not scenes:
        return "There is no picture."
    if len(scenes) == 2:
        return both_described(scenes)
    if scenes[0].other:
        return "I see no coloured shapes."
    count = len(scenes[0].items)
    return f"I see {description(scenes[0])}. That makes {plural(count, 'shape')}."


def _content(text: str, setting: Setting) -> list[dict]:
    """The parts of the user message that shows the pictures."""
    pictures = [{"type": "image"} for _ in setting.scenes]
    if setting.order == "text between":
        return [
            pictures[0],
            {"type": "text", "text": setting.separator + text + setting.separator},
            pictures[1],
        ]
    if setting.order == "text first":
        return [{"type": "text", "text": text + setting.separator}, *pictures]
    return [*pictures, {"type": "text", "text": setting.separator + text}]


def _as_typed(question: str, rng: random.Random) -> str:
    """Small liberties people take when they type."""
    share = rng.random()
    if share < 0.06:
        return question.lower()
    if share < 0.12:
        return question.rstrip(".?!")
    if share < 0.18:
        return rng.choice(("Hi! ", "Hello, ", "Please: ", "Look. ")) + question
    return question
