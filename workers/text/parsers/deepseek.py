"""DeepSeek V3 and V3.1: a section of calls between marks that are tokens.

As vllm.tool_parsers.deepseekv3_tool_parser and deepseekv31_tool_parser, but that text within the
section is no content and that streamed arguments are those of the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.text.parsers.base import Call, Delta, Parsed, Token, ToolContext, overlap, text_of

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_NAME_END = "<｜tool▁sep｜>"


@dataclass(frozen=True, slots=True)
class DeepSeekForm:
    """How one version writes a call."""

    before_name: str
    """Behind this mark the name begins; empty: at once."""
    before_arguments: str
    behind_arguments: str
    shows_text_behind: bool
    """Text behind the section is content of a whole output."""


V3 = DeepSeekForm(_NAME_END, "\n```json\n", "\n```", shows_text_behind=True)
V31 = DeepSeekForm("", _NAME_END, "", shows_text_behind=False)


class DeepSeekReader:
    is_grammar = False
    coalesces = False

    def __init__(self, form: DeepSeekForm) -> None:
        self._form = form

    def whole(self, text: str) -> Parsed:
        start = text.find(_SECTION)
        if start < 0:
            return Parsed(text)
        content, end = text[:start], text.rfind(_SECTION_END)
        if self._form.shows_text_behind and end >= 0:
            content += text[end + len(_SECTION_END) :]
        calls = [call for part in text.split(_CALL)[1:] if (call := self._call(part))]
        return Parsed(content or None, calls, is_final=True)

    def _call(self, part: str) -> Call | None:
        """None where a call is not closed."""
        form = self._form
        body, end, _ = part.partition(form.behind_arguments + _CALL_END)
        _, _, named = body.partition(form.before_name) if form.before_name else ("", "", body)
        name, mark, arguments = named.partition(form.before_arguments)
        return Call(name, arguments) if end and mark else None

    def incremental(self) -> "DeepSeekStream":
        return DeepSeekStream(self._form)


class DeepSeekStream:
    def __init__(self, form: DeepSeekForm) -> None:
        self._form = form
        self._held = ""
        self._part = "content"
        self._name = ""
        self._index = -1

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        self._held += text_of(tokens)
        deltas: list[Delta] = []
        while self._held and self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        held, self._held = self._held, ""
        if self._part == "content" and held:
            return [Delta("content", held)]
        if self._part == "arguments" and held:
            return [Delta("tool", held, self._index)]
        return []

    def _step(self, deltas: list[Delta]) -> bool:
        mark = self._mark()
        found = self._held.find(mark)
        size = len(self._held) - overlap(self._held, mark) if found < 0 else found
        text, self._held = self._held[:size], self._held[size:]
        if found >= 0:
            self._held = self._held[len(mark) :]
        self._take(text, deltas)
        if found >= 0:
            self._turn(deltas)
        return found >= 0

    def _mark(self) -> str:
        form = self._form
        return {
            "content": _SECTION,
            "section": _CALL,
            "kind": form.before_name,
            "name": form.before_arguments,
            "arguments": form.behind_arguments + _CALL_END,
        }[self._part]

    def _take(self, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        if self._part == "content":
            deltas.append(Delta("content", text))
        elif self._part == "name":
            self._name += text
        elif self._part == "arguments":
            deltas.append(Delta("tool", text, self._index))

    def _turn(self, deltas: list[Delta]) -> None:
        if self._part == "section":
            self._part, self._name = "kind" if self._form.before_name else "name", ""
        elif self._part == "name":
            self._part = "arguments"
            self._index += 1
            deltas.append(Delta("tool", tool=self._index, name=self._name))
        else:
            self._part = "name" if self._part == "kind" else "section"


def deepseek_v3(_context: ToolContext) -> DeepSeekReader:
    return DeepSeekReader(V3)


def deepseek_v31(_context: ToolContext) -> DeepSeekReader:
    return DeepSeekReader(V31)
