"""Calls that a JSON schema forces, for parsers whose model has no grammar of its own.

A named function's arguments are the whole text; required calls are a list of
`{"name": …, "parameters": …}`. As vllm.tool_parsers.streaming.
"""

import json
from collections.abc import Sequence

from workers.text.parsers.base import (
    MALFORMED,
    Call,
    Delta,
    Parsed,
    Token,
    dumps,
    text_of,
)
from workers.text.parsers.json_calls import CallList


class NamedReader:
    is_grammar = False
    coalesces = True

    def __init__(self, name: str) -> None:
        self._name = name

    def whole(self, text: str) -> Parsed:
        return Parsed(None, [Call(self._name, text)] if text.strip() else [])

    def incremental(self) -> "NamedStream":
        return NamedStream(self._name)


class NamedStream:
    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        name, self._name = self._name, None
        return [Delta("tool", text_of(tokens), name=name)]

    def finish(self) -> list[Delta]:
        return []


class RequiredReader:
    is_grammar = False
    coalesces = True

    def whole(self, text: str) -> Parsed:
        try:
            return Parsed(None, [_call(entry) for entry in json.loads(text)])
        except MALFORMED:
            return Parsed(None)

    def incremental(self) -> "RequiredStream":
        return RequiredStream()


def _call(entry: dict[str, object]) -> Call:
    name, parameters = entry["name"], entry.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict | None):
        raise TypeError("not a call")
    return Call(name, dumps(parameters))


class RequiredStream:
    """Text that is no list of calls is given out as nothing."""

    def __init__(self) -> None:
        self._calls = CallList(("parameters",), waits_for_arguments=True)

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        deltas: list[Delta] = []
        self._calls.feed(text_of(tokens), deltas)
        return deltas

    def finish(self) -> list[Delta]:
        return []


def forced_reader(name: str | None) -> NamedReader | RequiredReader:
    """`name`: of the one function that must be called; None: any."""
    return RequiredReader() if name is None else NamedReader(name)
