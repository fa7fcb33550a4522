"""Qwen3 coder: a `<tool_call>` with `<function=NAME><parameter=KEY>VALUE</parameter>…</function>`.

As vllm.parser.qwen3 of 0.33, with its ways out of unclosed tags. Seed-OSS writes the same in other
words.
"""

import re
from functools import cache

from workers.text.parsers.base import ToolContext
from workers.text.parsers.markup import CallGrammar, MarkupReader, State, Turn
from workers.text.parsers.tagged_arguments import ArgumentTags, TaggedArguments

_TAGS = ArgumentTags(
    begin=re.compile(r"<\s*parameter\s*=\s*"),
    behind=re.compile(">"),
    behind_text=">",
    end=re.compile(r"<\s*/\s*parameter\s*>|(?=<\s*parameter\s*=)"),
    end_texts=("</parameter>", "<parameter="),
    is_wrapped=True,
)

_TURNS: dict[tuple[State, str], Turn] = {
    ("content", "think_end"): Turn("content"),
    ("content", "call"): Turn("preamble", begins=True),
    ("content", "function"): Turn("name", begins=True),
    ("preamble", "call_end"): Turn("content", ends=True),
    ("preamble", "function"): Turn("name"),
    ("name", "close"): Turn("arguments"),
    ("name", "function_end"): Turn("between", ends=True),
    ("name", "call_end"): Turn("content", ends=True),
    ("name", "call"): Turn("preamble", ends=True, begins=True),
    ("name", "function"): Turn("name", ends=True, begins=True),
    ("arguments", "function_end"): Turn("between", ends=True),
    ("arguments", "function"): Turn("name", ends=True, begins=True),
    ("between", "call_end"): Turn("content"),
    ("between", "call"): Turn("preamble", begins=True),
    ("between", "function"): Turn("name", begins=True),
}


@cache
def _grammar(start: str, end: str, think: str, think_end: str) -> CallGrammar:
    return CallGrammar(
        texts=(
            ("think", think),
            ("think_end", think_end),
            ("call", start),
            ("call_end", end),
            ("function", "<function="),
            ("function_end", "</function>"),
            ("parameter", "<parameter="),
            ("parameter_end", "</parameter>"),
            ("close", ">"),
        ),
        tokens=frozenset(("think", "think_end", "call", "call_end")),
        turns=_TURNS,
        arguments=lambda properties: TaggedArguments(_TAGS, properties),
        reasoning=frozenset(("think", "think_end")),
    )


def qwen3_coder(context: ToolContext) -> MarkupReader:
    grammar = _grammar("<tool_call>", "</tool_call>", "<think>", "</think>")
    return MarkupReader(grammar, context)


def seed_oss(context: ToolContext) -> MarkupReader:
    grammar = _grammar("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>")
    return MarkupReader(grammar, context)
