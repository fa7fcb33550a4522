"""Granite 3: a mark, then a list of calls as JSON, then content again.

As vllm.parser.granite.
"""

import json
from collections.abc import Sequence

from workers.text.parsers.base import (
    MALFORMED,
    Call,
    Delta,
    Parsed,
    Token,
    ToolContext,
    dumps,
)
from workers.text.parsers.json_calls import CallList
from workers.text.parsers.lexer import DROPPED, Lexer, Marks, marks_of
from workers.text.parsers.markup import ContentGate

_TEXTS = (("token", "<|tool_call|>"), ("text", "<tool_call>"))
_MARKS = tuple(name for name, _ in _TEXTS)


class GraniteReader:
    is_grammar = True
    coalesces = True

    def __init__(self, context: ToolContext) -> None:
        self._marks = marks_of(_TEXTS, frozenset(("token",)), context.vocabulary)

    def whole(self, text: str) -> Parsed:
        stream = self.incremental()
        deltas = stream.push([Token(None, text)]) + stream.finish()
        content = "".join(delta.text for delta in deltas if delta.channel == "content")
        calls = [call for call in map(_call, _joined(deltas)) if call]
        return Parsed((content.strip() if calls else content) or None, calls)

    def incremental(self) -> "GraniteStream":
        return GraniteStream(self._marks)


def _joined(deltas: Sequence[Delta]) -> list[tuple[str, str]]:
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        if delta.channel == "tool":
            name, text = calls.get(delta.tool, (delta.name or "", ""))
            calls[delta.tool] = name, text + delta.text
    return list(calls.values())


def _call(given: tuple[str, str]) -> Call:
    """Arguments in the spacing of `json.dumps`, where they are an object."""
    name, text = given
    try:
        value = json.loads(text)
    except MALFORMED:
        return Call(name, text or "{}")
    return Call(name, dumps(value) if not isinstance(value, str) else value)


class GraniteStream:
    def __init__(self, marks: Marks) -> None:
        self._lexer = Lexer(marks)
        self._gate = ContentGate()
        self._list: CallList | None = None
        self._num_calls = 0

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        deltas: list[Delta] = []
        for token in tokens:
            for name, text in self._lexer.feed(token):
                self._piece(name, text, deltas)
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        for name, text in self._lexer.finish():
            self._piece(name, text, deltas)
        if blank := self._gate.finish():
            deltas.append(Delta("content", blank))
        return deltas

    def _piece(self, name: str | None, text: str, deltas: list[Delta]) -> None:
        if name == DROPPED:
            return
        if name in _MARKS and self._list is None:
            self._list = CallList()
            return
        if self._list is not None:
            text = self._calls(self._list, text, deltas)
        if content := self._gate.push(text) if text else "":
            deltas.append(Delta("content", content))

    def _calls(self, calls: CallList, text: str, deltas: list[Delta]) -> str:
        new: list[Delta] = []
        rest = calls.feed(text, new)
        for delta in new:
            deltas.append(Delta("tool", delta.text, self._num_calls + delta.tool, delta.name))
        self._gate.has_called = self._gate.has_called or bool(new)
        if calls.is_done or calls.is_broken:
            self._num_calls += calls.num_named
            self._list = None
        return rest
