"""Output parsers by vLLM's flag names: what `--tool-call-parser` and `--reasoning-parser` read.

A name that only render knows (`workers.text.tools`, `workers.text.reasoning`) has no reader here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workers.text.parsers.base import ReasoningReader, ToolContext, ToolReader, Vocabulary
from workers.text.parsers.deepseek import deepseek_v3, deepseek_v31
from workers.text.parsers.glm import glm
from workers.text.parsers.granite import GraniteReader
from workers.text.parsers.hermes import HermesReader
from workers.text.parsers.llama import LlamaReader
from workers.text.parsers.mistral import mistral
from workers.text.parsers.pythonic import pythonic
from workers.text.parsers.qwen3_coder import qwen3_coder, seed_oss
from workers.text.parsers.reasoning_tags import ReasoningTags, TagReasoningReader
from workers.text.parsers.thinking import SilentReader, ThinkingReader


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A tool parser's way of reading."""

    reader: Callable[[ToolContext], ToolReader]
    marks: tuple[str, ...] = ()
    """Tokens that must reach it, though they may be special."""
    has_short_ids: bool = False
    """Ids of calls are nine letters and digits, which Mistral's templates insist on."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A reasoning parser's way of reading."""

    reader: Callable[[Vocabulary, bool], ReasoningReader]
    """For a model, and for whether the request wants it to reason."""
    marks: tuple[str, ...]
    is_grammar: bool = True


_CALL = ("<tool_call>", "</tool_call>")
_DEEPSEEK = tuple(
    f"<｜tool▁{what}｜>" for what in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_HERMES = ToolFormat(HermesReader, _CALL)
_LLAMA = ToolFormat(LlamaReader, ("<|python_tag|>",))
_QWEN3_CODER = ToolFormat(qwen3_coder, (*_CALL, "<think>", "</think>"))
_GLM_ARGUMENTS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM = ToolFormat(glm, (*_CALL, *_GLM_ARGUMENTS, "<think>", "</think>"))

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": _HERMES,
    "qwen3_json": _HERMES,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "qwen3_coder": _QWEN3_CODER,
    "qwen3_xml": _QWEN3_CODER,
    "seed_oss": ToolFormat(
        seed_oss, ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>")
    ),
    "mistral": ToolFormat(
        mistral, ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"), has_short_ids=True
    ),
    "pythonic": ToolFormat(pythonic),
    "glm45": _GLM,
    "glm47": _GLM,
    "deepseek_v3": ToolFormat(deepseek_v3, _DEEPSEEK),
    "deepseek_v31": ToolFormat(deepseek_v31, _DEEPSEEK),
    "granite": ToolFormat(GraniteReader, ("<|tool_call|>", "<tool_call>")),
}


def _tags(tags: ReasoningTags) -> Callable[[Vocabulary, bool], ReasoningReader]:
    def reader(vocabulary: Vocabulary, is_on: bool) -> ReasoningReader:
        return TagReasoningReader(tags, vocabulary, is_on=is_on)

    return reader


def _thinking(vocabulary: Vocabulary, _is_on: bool) -> ReasoningReader:
    return ThinkingReader(vocabulary)


def _thinking_if_on(vocabulary: Vocabulary, is_on: bool) -> ReasoningReader:
    return ThinkingReader(vocabulary) if is_on else SilentReader()


def _mistral(vocabulary: Vocabulary, _is_on: bool) -> ReasoningReader:
    """A model without the marks does not reason."""
    if _MISTRAL_TAGS.start not in vocabulary.added:
        return SilentReader()
    return TagReasoningReader(_MISTRAL_TAGS, vocabulary, is_on=True)


_THINK = ("<think>", "</think>")
_FUNCTION_MARKS = ("<function=", "</function>", "<parameter=", "</parameter>")
_QWEN3_TAGS = ReasoningTags(
    *_THINK, "<tool_call>", begins_inside=True, others=("</tool_call>", *_FUNCTION_MARKS)
)
_GLM_TAGS = ReasoningTags(
    *_THINK,
    "<tool_call>",
    begins_inside=True,
    reopens=True,
    strips_end=True,
    others=("</tool_call>", *_GLM_ARGUMENTS),
)
_MISTRAL_TAGS = ReasoningTags(
    "[THINK]",
    "[/THINK]",
    "[TOOL_CALLS]",
    begins_inside=False,
    reopens=True,
    strips_end=True,
    others=("[ARGS]",),
)
_DEEPSEEK_R1 = ReasoningFormat(_thinking, _THINK, is_grammar=False)
_GLM_REASONING = ReasoningFormat(_tags(_GLM_TAGS), (*_THINK, *_CALL, *_GLM_ARGUMENTS))

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "qwen3": ReasoningFormat(_tags(_QWEN3_TAGS), (*_THINK, *_CALL)),
    "deepseek_r1": _DEEPSEEK_R1,
    "step5": _DEEPSEEK_R1,
    "deepseek_v3": ReasoningFormat(_thinking_if_on, _THINK, is_grammar=False),
    "glm45": _GLM_REASONING,
    "glm47": _GLM_REASONING,
    "mistral": ReasoningFormat(_mistral, ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")),
}
