"""Calls written as Python: an output that is `[name(key=value, …), …]` and nothing else.

As vllm.tool_parsers.pythonic_tool_parser, but that a list which is none of calls is content in
streams, too.
"""

import ast
import re
from collections.abc import Sequence
from typing import Any

from workers.text.parsers.base import (
    MALFORMED,
    Call,
    Delta,
    Parsed,
    Token,
    ToolContext,
    dumps,
    text_of,
)

_NOT_PYTHON = (*MALFORMED, SyntaxError, MemoryError)
_JSON_WORDS = {"null": None, "true": True, "false": False}
_NAME = re.compile(r"[A-Za-z]\w*")
_SPACE = " \t\r\n"


class PythonicReader:
    is_grammar = False
    coalesces = True

    def __init__(self, context: ToolContext) -> None:
        pass

    def whole(self, text: str) -> Parsed:
        if not text.startswith("["):
            return Parsed(text)
        try:
            calls = [_call(node) for node in _expression(text).elts]  # type: ignore[attr-defined]
        except _NOT_PYTHON:
            return Parsed(text)
        return Parsed(None, calls) if calls else Parsed(text)

    def incremental(self) -> "PythonicStream":
        return PythonicStream()


def _expression(text: str) -> ast.expr:
    body = ast.parse(text).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise ValueError("not one expression")
    return body[0].value


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name):
        raise ValueError("not a call with named arguments")
    if not _NAME.fullmatch(node.func.id):
        raise ValueError("not a name")
    arguments = {word.arg: _literal(word.value) for word in node.keywords}
    return Call(node.func.id, dumps(arguments))


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | str() | int() | float()):
            return node.value
        case ast.Dict():
            return {_key(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True)}
        case ast.List() | ast.Tuple() | ast.Set():
            return [_literal(entry) for entry in node.elts]
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=value)):
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value if isinstance(node.op, ast.USub) else value
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> Any:
    if not isinstance(node, ast.Constant):
        raise ValueError("not a literal key")
    return node.value


class PythonicStream:
    """Reads character by character; a value is given out once it is complete."""

    def __init__(self) -> None:
        self._read = self._start
        self._held = ""
        """All text, until a call is certain."""
        self._word = ""
        self._call_name: str | None = None
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._quote = ""
        self._run = ""
        self._escaped = False
        self._index = -1
        self._has_argument = False
        self._is_text = False
        self._is_over = False

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        text, deltas = text_of(tokens), list[Delta]()
        for position, char in enumerate(text):
            if self._is_text or self._is_over:
                text = text[position:]
                break
            if self._index < 0:
                self._held += char
            if not self._read(char, deltas):
                self._fail()
        else:
            text = ""
        if self._is_text:
            text, self._held = self._held + text, ""
            deltas += [Delta("content", text)] if text else []
        return deltas

    def finish(self) -> list[Delta]:
        held, self._held = self._held, ""
        return [Delta("content", held)] if held and self._index < 0 else []

    def _fail(self) -> None:
        self._is_text, self._is_over = self._index < 0, self._index >= 0

    # Each state takes a character and tells whether it may stand there.

    def _start(self, char: str, deltas: list[Delta]) -> bool:
        self._read = self._name
        return char == "["

    def _name(self, char: str, deltas: list[Delta]) -> bool:
        if char == "(":
            return self._begin()
        return self._append(char)

    def _append(self, char: str) -> bool:
        """To a word; space may stand around it, not within."""
        if char in _SPACE:
            self._word += " " if self._word else ""
            return True
        is_right = not self._word.endswith(" ") and (char.isalnum() or char == "_")
        self._word += char
        return is_right

    def _take_word(self) -> str:
        word, self._word = self._word.rstrip(), ""
        return word

    def _begin(self) -> bool:
        name = self._take_word()
        if not _NAME.fullmatch(name):
            return False
        self._call_name, self._has_argument, self._read = name, False, self._argument
        return True

    def _announce(self, deltas: list[Delta]) -> None:
        """With the first argument, or without one: until then this may be ordinary text."""
        if self._call_name is not None:
            self._index += 1
            self._held = ""
            deltas.append(Delta("tool", tool=self._index, name=self._call_name))
            self._call_name = None

    def _argument(self, char: str, deltas: list[Delta]) -> bool:
        if char == ")" and not self._word.strip():
            self._announce(deltas)
            deltas.append(Delta("tool", "}" if self._has_argument else "{}", self._index))
            self._read = self._behind
            return True
        if char == "=" and self._word:
            self._key, self._value, self._run = self._take_word(), [], ""
            self._read = self._in_value
            return True
        return self._append(char)

    def _behind(self, char: str, deltas: list[Delta]) -> bool:
        if char == ",":
            self._read = self._name
        elif char == "]":
            self._is_over = True
        return char in _SPACE or char in ",]"

    def _in_value(self, char: str, deltas: list[Delta]) -> bool:
        if self._quote:
            self._in_string(char)
        elif self._depth == 0 and char in ",)":
            if not self._give(deltas):
                return False
            self._read = self._argument
            return char == "," or self._argument(char, deltas)
        else:
            self._outside(char)
        self._value.append(char)
        return True

    def _outside(self, char: str) -> None:
        if char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
        elif char in "'\"":
            is_third = self._run == char * 2
            self._quote = char * 3 if is_third else char
            self._run = "" if is_third else char
            return
        self._run = ""

    def _in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
            return
        self._escaped = char == "\\"
        self._run = self._run + char if char == self._quote[0] else ""
        if len(self._quote) == 1 and char == self._quote:
            self._quote = ""
        elif self._run == self._quote:
            self._quote = self._run = ""

    def _give(self, deltas: list[Delta]) -> bool:
        try:
            value = dumps(_literal(_expression("".join(self._value).strip())))
        except _NOT_PYTHON:
            return False
        before = ", " if self._has_argument else "{"
        self._has_argument = True
        self._announce(deltas)
        deltas.append(Delta("tool", before + dumps(self._key) + ": " + value, self._index))
        return True


def pythonic(context: ToolContext) -> PythonicReader:
    return PythonicReader(context)
