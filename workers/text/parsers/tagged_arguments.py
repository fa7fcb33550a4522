"""Arguments written as tags around plain text, read into a JSON object as they come.

A value that can only be a string is given out while it grows; others once they are complete.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.text.parsers.base import dumps
from workers.text.parsers.coercion import coerced, kinds_of

_STRING = frozenset(("string",))


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """How one family writes an argument."""

    begin: re.Pattern[str]
    """Before the key."""
    behind: re.Pattern[str]
    """Between key and value."""
    behind_text: str
    """What that begins with."""
    end: re.Pattern[str]
    """Behind the value."""
    end_texts: tuple[str, ...]
    """What that is, without spaces."""
    is_wrapped: bool = False
    """One line break at either end of a value is markup."""
    strips_key: bool = False


class TaggedArguments:
    """The arguments of one call. Mutable."""

    def __init__(self, tags: ArgumentTags, properties: Mapping[str, Any]) -> None:
        """`properties`: schemas by argument; empty: every value is a string."""
        self._tags = tags
        self._properties = properties
        self._text = ""
        self._in_key = False
        self._searched = 0
        self._key: str | None = None
        self._is_known = False
        self._kinds = _STRING
        self._streams = False
        self._at_start = True
        self._parts: list[str] = []
        self._values: dict[str, Any] = {}
        self._has_begun = False

    def feed(self, text: str) -> str:
        self._text += text
        written = ""
        while True:
            more = self._begin() if self._key is None else self._continue()
            if more is None:
                return written
            written += more

    def close(self) -> str:
        """What is left to write of the object; nothing where a value is still open."""
        if self._key is not None:
            return ""
        return "}" if self._has_begun else "{}"

    def whole(self) -> str:
        """The object, of complete values only."""
        return dumps(self._values)

    def _begin(self) -> str | None:
        if not self._in_key:
            found = self._tags.begin.search(self._text)
            if found is None:
                self._text = self._text[max(self._text.rfind("<"), 0) :]
                return None
            self._text, self._in_key, self._searched = self._text[found.end() :], True, 0
        found = self._tags.behind.search(self._text, self._searched)
        if found is None:
            mark = self._tags.behind_text
            start = self._text.rfind(mark, self._searched)
            self._searched = start if start >= 0 else max(len(self._text) - len(mark), 0)
            return None
        key, self._text = self._text[: found.start()], self._text[found.end() :]
        return self._open(key.strip() if self._tags.strips_key else key)

    def _open(self, key: str) -> str:
        self._key, self._in_key = key, False
        self._at_start, self._parts = True, []
        schema = self._properties.get(key)
        self._kinds = _STRING if schema is None else kinds_of(schema)
        is_listed = not self._properties or isinstance(schema, Mapping)
        self._streams = is_listed and self._kinds == _STRING
        self._is_known = key in self._values
        if self._is_known:  # it is written already: too late to change it
            return ""
        before = ", " if self._has_begun else "{"
        self._has_begun = True
        return before + dumps(key) + ": " + ('"' if self._streams else "")

    def _continue(self) -> str | None:
        found = self._tags.end.search(self._text)
        if found is None:
            size = len(self._text) - self._open_end()
            value, self._text = self._text[:size], self._text[size:]
            return self._grow(value) or None
        value, self._text = self._text[: found.start()], self._text[found.end() :]
        if self._tags.is_wrapped:
            value = self._without_last_break(value)
        return self._grow(value) + self._complete()

    def _without_last_break(self, value: str) -> str:
        is_only = self._at_start and value == "\n"
        return value if is_only else value.removesuffix("\n")

    def _grow(self, value: str) -> str:
        if self._tags.is_wrapped and self._at_start and value:
            self._at_start, value = False, value.removeprefix("\n")
        self._parts.append(value)
        if not self._streams or self._is_known:
            return ""
        return dumps(value)[1:-1]

    def _complete(self) -> str:
        key, text = self._key or "", "".join(self._parts)
        value = text if self._kinds == _STRING else coerced(text, self._kinds)
        self._values[key], self._key = value, None
        if self._is_known:
            return ""
        return '"' if self._streams else dumps(value)

    def _open_end(self) -> int:
        """Characters at the end that may belong to an end, or be the last line break."""
        start = self._text.rfind("<")
        tail = "".join(self._text[start:].split()) if start >= 0 else ""
        is_open = start >= 0 and any(text.startswith(tail) for text in self._tags.end_texts)
        size = len(self._text) - start if is_open else 0
        if self._tags.is_wrapped and self._text[: len(self._text) - size].endswith("\n"):
            size += 1
        return size
