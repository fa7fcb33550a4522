"""Hermes and Qwen 2.5/3: `<tool_call>{"name": …, "arguments": …}</tool_call>`.

As vllm.tool_parsers.hermes_tool_parser, but for arguments before the name, which stay JSON here.
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
    overlap,
    text_of,
)
from workers.text.parsers.json_scan import ObjectScanner

START, END = "<tool_call>", "</tool_call>"


class HermesReader:
    is_grammar = False
    coalesces = False

    def __init__(self, context: ToolContext) -> None:
        pass

    def whole(self, text: str) -> Parsed:
        """All calls, or none where one of them is not what it should be."""
        if START not in text:
            return Parsed(text)
        try:
            calls = [_call(region) for region in _regions(text)]
        except MALFORMED:
            return Parsed(text)
        return Parsed(text[: text.index(START)] or None, calls)

    def incremental(self) -> "HermesStream":
        return HermesStream()


def _regions(text: str) -> list[str]:
    """Between the marks; the last may be open, and a start within one belongs to it."""
    regions, position = [], 0
    while (start := text.find(START, position)) >= 0:
        end = text.find(END, start)
        position = len(text) if end < 0 else end + len(END)
        regions.append(text[start + len(START) : len(text) if end < 0 else end])
    return regions


def _call(region: str) -> Call:
    given = json.loads(region)
    name = given["name"]
    if not isinstance(name, str):
        raise TypeError("a name is text")
    return Call(name, dumps(given["arguments"]))


class HermesStream:
    """Once a call has begun no more content is given out, as in vLLM."""

    def __init__(self) -> None:
        self._held = ""
        self._in_call = False
        self._has_called = False
        self._call = ObjectScanner()
        self._index = 0
        self._is_named = False
        self._is_stuck = False

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        self._held += text_of(tokens)
        deltas: list[Delta] = []
        while self._held and self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        held, self._held = self._held, ""
        if self._in_call:
            return self._read(held)
        return [] if self._has_called or not held else [Delta("content", held)]

    def _step(self, deltas: list[Delta]) -> bool:
        """Up to the next mark, or to what may be the beginning of one."""
        mark = END if self._in_call else START
        found = self._held.find(mark)
        size = len(self._held) - overlap(self._held, mark) if found < 0 else found
        text, self._held = self._held[:size], self._held[size:].removeprefix(mark)
        if self._in_call:
            deltas += self._read(text)
        elif text and not self._has_called:
            deltas.append(Delta("content", text))
        if found >= 0:
            self._turn()
        return found >= 0

    def _turn(self) -> None:
        self._in_call = not self._in_call
        if self._in_call:
            self._has_called = True
            self._call = ObjectScanner()
        elif self._is_named:
            self._index += 1
            self._is_named = False
        else:  # calls behind one without a name have no place
            self._is_stuck = True

    def _read(self, text: str) -> list[Delta]:
        self._call.feed(text)
        if self._is_stuck or not self._call.name:
            return []
        deltas = []
        if not self._is_named:
            self._is_named = True
            deltas.append(Delta("tool", tool=self._index, name=self._call.name))
        arguments = self._call.take()
        if arguments:
            deltas.append(Delta("tool", arguments, self._index))
        return deltas
