"""Granite 3: a mark, then a list of calls as JSON, then content again.

As vllm.parser.granite.
"""

from collections.abc import Sequence

from workers.text.parsers.base import (
    Call,
    Delta,
    Parsed,
    Token,
    ToolContext,
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
        calls = _calls(deltas)
        return Parsed((content.strip() if calls else content) or None, calls)

    def incremental(self) -> "GraniteStream":
        return GraniteStream(self._marks)


def _calls(deltas: Sequence[Delta]) -> list[Call]:
    """Arguments as they were written, none where they were not."""
    calls: dict[int, Call] = {}
    for delta in deltas:
        if delta.channel == "tool":
            call = calls.get(delta.tool, Call(delta.name or "", ""))
            calls[delta.tool] = Call(call.name, call.arguments + delta.text)
    return [Call(call.name, call.arguments or "{}") for call in calls.values()]


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
