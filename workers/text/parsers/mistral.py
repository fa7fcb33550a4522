"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]NAME[ARGS]{…}` from v11 on.

As vllm.parser.mistral for tokenizers of Hugging Face's kind: those with an `[ARGS]` token write the
newer form.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workers.text.parsers.base import (
    MALFORMED,
    Call,
    Delta,
    Parsed,
    Token,
    ToolContext,
    dumps,
    overlap,
    text_of,
)
from workers.text.parsers.json_calls import CallList
from workers.text.parsers.json_scan import WHITESPACE, ValueScanner
from workers.text.parsers.markup import CallGrammar, MarkupReader, State, Turn

MARK = "[TOOL_CALLS]"
_ARGUMENTS = "[ARGS]"
_LIST = re.compile(r"\[{.*}\]", re.DOTALL)


class _FirstValue:
    """Arguments that end with the first JSON value; what follows it is dropped."""

    def __init__(self) -> None:
        self._scanner = ValueScanner()
        self._parts: list[str] = []

    def feed(self, text: str) -> str:
        if self._scanner.is_done:
            return ""
        if not self._parts:
            text = text.lstrip(WHITESPACE)
        text = text[: self._scanner.feed(text)]
        if text:
            self._parts.append(text)
        return text

    def close(self) -> str:
        return "" if self._parts else "{}"

    def whole(self) -> str:
        return "".join(self._parts).strip() or "{}"


def _first_value(_properties: Mapping[str, Any]) -> _FirstValue:
    return _FirstValue()


_TURNS: dict[tuple[State, str], Turn] = {
    ("content", "think_end"): Turn("content"),
    ("content", "call"): Turn("name", begins=True),
    ("name", "arguments"): Turn("arguments"),
    ("name", "brace"): Turn("arguments", is_argument=True),
    ("arguments", "call"): Turn("name", ends=True, begins=True),
}
_GRAMMAR = CallGrammar(
    texts=(
        ("think", "[THINK]"),
        ("think_end", "[/THINK]"),
        ("call", MARK),
        ("arguments", _ARGUMENTS),
        ("brace", "{"),
    ),
    tokens=frozenset(("think", "think_end", "call", "arguments")),
    turns=_TURNS,
    arguments=_first_value,
    reasoning=frozenset(("think", "think_end")),
    takes_empty_names=True,
)


def mistral(context: ToolContext) -> "MarkupReader | ListReader":
    if _ARGUMENTS in context.vocabulary.added:
        return MarkupReader(_GRAMMAR, context)
    return ListReader(context)


class ListReader:
    is_grammar = True
    coalesces = True

    def __init__(self, context: ToolContext) -> None:
        self._is_forced = context.is_forced

    def whole(self, text: str) -> Parsed:
        """Undecodable calls are content, without what stands before them."""
        before, mark, behind = text.partition(MARK)
        if mark:
            parts = (part.strip() for part in behind.split(MARK))
            source = next((part for part in parts if part), "")
        elif self._is_forced:
            before, source = "", text.strip()
        else:
            return Parsed(text)
        calls = _calls(source)
        if not calls:
            return Parsed(source or None)
        return Parsed(before if before.strip() else None, calls)

    def incremental(self) -> "ListStream":
        return ListStream(is_forced=self._is_forced)


def _calls(source: str) -> list[Call]:
    try:
        try:
            given, _ = json.JSONDecoder().raw_decode(source)
        except ValueError:
            given = json.loads(_LIST.findall(source)[0])
    except MALFORMED:
        return []
    entries = given if isinstance(given, list) else [given]
    return [_call(e) for e in entries if isinstance(e, dict) and ("name" in e or "arguments" in e)]


def _call(entry: Mapping[str, Any]) -> Call:
    name, arguments = entry.get("name"), entry.get("arguments")
    if arguments is None:
        arguments = "{}"
    elif not isinstance(arguments, str):
        arguments = dumps(arguments)
    return Call(name if isinstance(name, str) else "", arguments)


class ListStream:
    def __init__(self, *, is_forced: bool) -> None:
        self._is_forced = is_forced
        self._held = ""
        self._calls: CallList | None = None

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        text, deltas = text_of(tokens), list[Delta]()
        if self._calls is None:
            text = self._before(self._held + text, deltas)
        if self._calls is not None:
            rest = self._calls.feed(text.replace(MARK, ""), deltas)
            if rest and self._calls.is_done:
                deltas.append(Delta("content", rest))
        return deltas

    def finish(self) -> list[Delta]:
        return [Delta("content", self._held)] if self._held else []

    def _before(self, text: str, deltas: list[Delta]) -> str:
        """Content up to the mark; what may be its beginning waits."""
        before, mark, behind = text.partition(MARK)
        if self._is_forced and text and not mark:
            before, mark, behind = "", MARK, text
        if mark:
            self._held, self._calls = "", CallList(takes_object=True, unquotes=True)
        else:
            held = overlap(before, MARK)
            before, self._held = before[: len(before) - held], before[len(before) - held :]
        if before:
            deltas.append(Delta("content", before))
        return behind
