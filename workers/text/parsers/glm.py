"""GLM 4.5 to 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`.

As vllm.parser.glm47_moe.
"""

import re

from workers.text.parsers.base import ToolContext
from workers.text.parsers.markup import CallGrammar, MarkupReader, State, Turn
from workers.text.parsers.tagged_arguments import ArgumentTags, TaggedArguments

_TAGS = ArgumentTags(
    begin=re.compile("<arg_key>"),
    behind=re.compile(r"</arg_key>\s*<arg_value>"),
    behind_text="</arg_key>",
    end=re.compile("</arg_value>"),
    end_texts=("</arg_value>",),
    strips_key=True,
)
_ARGUMENT_MARKS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

_TURNS: dict[tuple[State, str], Turn] = {
    ("content", "think_end"): Turn("content"),
    ("content", "call"): Turn("name", begins=True),
    ("name", "<arg_key>"): Turn("arguments", is_argument=True),
    ("name", "call_end"): Turn("content", ends=True),
    ("arguments", "call_end"): Turn("content", ends=True),
}

_GRAMMAR = CallGrammar(
    texts=(
        ("think", "<think>"),
        ("think_end", "</think>"),
        ("call", "<tool_call>"),
        ("call_end", "</tool_call>"),
        *((mark, mark) for mark in _ARGUMENT_MARKS),
    ),
    tokens=frozenset(("think", "think_end", "call", "call_end")),
    turns=_TURNS,
    arguments=lambda properties: TaggedArguments(_TAGS, properties),
    reasoning=frozenset(("think", "think_end")),
    checks_names=True,
)


def glm(context: ToolContext) -> MarkupReader:
    return MarkupReader(_GRAMMAR, context)
