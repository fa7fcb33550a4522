from pathlib import Path
from typing import cast

import pytest

from runtime.errors import SettingsError
from workers.text.reasoning import PromptReasoning, reasoning_rules
from workers.text.tokenizer import Tokenizer

MODELS = Path(__file__).parent.parent / "data" / "models"
TOKENIZER = Tokenizer.from_directory(MODELS / "tiny-qwen3-thinking")


@pytest.mark.parametrize(
    ("prompt", "kwargs", "expected"),
    [
        ("<|im_start|>assistant\n", {}, False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", {}, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", {"enable_thinking": False}, True),
        ("<|im_start|>assistant\n", {"enable_thinking": False}, True),
        ("</think><|im_end|>\n<|im_start|>assistant\n", {}, False),
        ("<|im_start|>assistant\n<think>", {}, False),
        ("<|im_start|>assistant\n<tool_call>", {}, True),
    ],
)
def test_qwen3_thinks_until_it_says_otherwise(
    prompt: str, kwargs: dict[str, bool], expected: bool
) -> None:
    reasoning = PromptReasoning(reasoning_rules("qwen3"), TOKENIZER)
    ids = TOKENIZER.encode(prompt, add_special_tokens=False)

    assert expected == reasoning.has_ended(ids, kwargs)


@pytest.mark.parametrize(
    ("prompt", "expected"), [("a", False), ("<think>a", False), ("<think>a</think>b", True)]
)
def test_deepseek_ends_where_the_mark_is(prompt: str, expected: bool) -> None:
    reasoning = PromptReasoning(reasoning_rules("deepseek_r1"), TOKENIZER)

    assert expected == reasoning.has_ended(TOKENIZER.encode(prompt, add_special_tokens=False), {})


@pytest.mark.parametrize(
    ("name", "kwargs", "expected"),
    [
        ("glm45", {}, False),
        ("glm45", {"enable_thinking": False}, True),
        ("glm45", {"enable_thinking": False, "thinking": True}, False),
        ("deepseek_v3", {}, True),
        ("deepseek_v3", {"enable_thinking": True}, False),
        ("granite", {}, None),
    ],
)
def test_switches_tell_whether_a_model_thinks(
    name: str, kwargs: dict[str, bool], expected: bool | None
) -> None:
    assert PromptReasoning(reasoning_rules(name), TOKENIZER).has_ended([], kwargs) is expected


class OfMarks:
    """Stands for the tokenizer of a model that has these tokens."""

    def __init__(self, *marks: str) -> None:
        self.marks = marks

    def token_id(self, text: str) -> int | None:
        return self.marks.index(text) if text in self.marks else None


@pytest.mark.parametrize(
    ("marks", "prompt", "expected"),
    [
        (("[TOOL_CALLS]", "[THINK]", "[/THINK]"), [], False),
        (("[TOOL_CALLS]", "[THINK]", "[/THINK]"), [1, 9, 2, 9], True),
        (("[TOOL_CALLS]", "[THINK]", "[/THINK]"), [2, 9, 1, 9], False),
        (("[TOOL_CALLS]", "[THINK]", "[/THINK]"), [9, 0], True),
        (("[TOOL_CALLS]",), [], True),
    ],
)
def test_mistral_thinks_only_where_a_model_can(
    marks: tuple[str, ...], prompt: list[int], expected: bool
) -> None:
    reasoning = PromptReasoning(reasoning_rules("mistral"), cast(Tokenizer, OfMarks(*marks)))

    assert reasoning.has_ended(prompt, {}) is expected


def test_mistral_needs_its_mark_of_calls() -> None:
    with pytest.raises(SettingsError, match="TOOL_CALLS"):
        PromptReasoning(reasoning_rules("mistral"), TOKENIZER)


def test_a_model_without_the_marks_is_refused() -> None:
    llava = Tokenizer.from_directory(MODELS / "tiny-llava")

    with pytest.raises(SettingsError, match="<think>"):
        PromptReasoning(reasoning_rules("deepseek_r1"), llava)


def test_qwen3_takes_any_model_and_believes_what_it_was_told() -> None:
    llava = Tokenizer.from_directory(MODELS / "tiny-llava")
    reasoning = PromptReasoning(reasoning_rules("qwen3"), llava)

    ids = llava.encode("a</think>", add_special_tokens=False)

    assert reasoning.has_ended(ids, {}) is False
    assert reasoning.has_ended(ids, {"enable_thinking": False}) is True


def test_an_unknown_parser_is_refused() -> None:
    with pytest.raises(SettingsError, match="known are"):
        reasoning_rules("nope")
