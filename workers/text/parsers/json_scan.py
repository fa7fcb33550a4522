"""JSON objects read character by character, as a model writes them. Bounded in time per character.

`ObjectScanner` finds a call's name and the raw text of its arguments in `{"name": …, "arguments":
…}`; `Rewriter` writes JSON again in the spacing of `json.dumps`. Neither raises.
"""

import json
import re
from collections.abc import Collection, Iterator

WHITESPACE = " \t\r\n"
_UNSAFE = re.compile(r'["\\]')


class ValueScanner:
    """Where one JSON value ends. Brackets count, their kinds do not."""

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_scalar = False
        self._has_begun = False

    def feed(self, text: str) -> int:
        """Characters of `text` that belong to the value, space before it included."""
        for position, char in enumerate(text):
            if self._in_string:
                self._string(char)
            elif not self._outside(char):
                return position
            if self.is_done:
                return position + 1
        return len(text)

    def _string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            self.is_done = self._depth == 0

    def _outside(self, char: str) -> bool:
        """False where the value ended before this character."""
        if self._is_scalar and (char in WHITESPACE or char in ",]}:"):
            self.is_done = True
            return False
        if char in WHITESPACE:
            return True
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            if self._depth == 0:
                self.is_done = True
                return False
            self._depth -= 1
            self.is_done = self._depth == 0
        elif self._depth == 0:
            self._is_scalar = True
        self._has_begun = True
        return True


class ObjectScanner:
    """The outer members of one object, as its text comes."""

    def __init__(self, arguments: Collection[str] = ("arguments",)) -> None:
        """`arguments`: keys whose value is wanted as raw text."""
        self._wanted = arguments
        self._state = self._open
        self._text = ""
        self._searched = 0
        self._key = ""
        self._value = ValueScanner()
        self._scalar = ""
        self.name: str | None = None
        """Once it is complete, where it is a string."""
        self.has_arguments = False
        self.is_done = False
        self.is_broken = False
        """This is no object of quoted keys."""
        self._raw = ""

    def feed(self, text: str) -> str:
        """The text left over once the object is complete."""
        self._text += text
        while self._text and not (self.is_done or self.is_broken):
            if not self._state():
                break
        if self.is_broken:
            self._text = ""
        rest, self._text = (self._text, "") if self.is_done else ("", self._text)
        return rest

    def take(self) -> str:
        """New raw text of the arguments. Space at the end waits for what follows it."""
        kept = self._raw.rstrip()
        raw, self._raw = kept, self._raw[len(kept) :]
        return raw

    # Each state eats from the text and tells whether it could.

    def _open(self) -> bool:
        return self._expect({"{": self._key_or_end})

    def _key_or_end(self) -> bool:
        return self._expect({'"': self._in_key, "}": self._end, ",": self._key_or_end})

    def _in_key(self) -> bool:
        end, self._searched = _string_end(self._text, self._searched)
        if end is None:
            return False
        self._key, self._text, self._searched = self._text[: end - 1], self._text[end:], 0
        self._state = self._colon
        return True

    def _colon(self) -> bool:
        return self._expect({":": self._value_start})

    def _value_start(self) -> bool:
        self._text = self._text.lstrip(WHITESPACE)
        if not self._text:
            return False
        self._value, self._scalar = ValueScanner(), ""
        if self._key in self._wanted and not self.has_arguments:
            self.has_arguments = True
            self._state = self._in_arguments
        else:
            self._state = self._in_value
        return True

    def _in_arguments(self) -> bool:
        size = self._value.feed(self._text)
        self._raw += self._text[:size]
        return self._after_value(size)

    def _in_value(self) -> bool:
        size = self._value.feed(self._text)
        if self._key == "name":
            self._scalar += self._text[:size]
            if self._value.is_done:
                self._take_name()
        return self._after_value(size)

    def _after_value(self, size: int) -> bool:
        self._text = self._text[size:]
        if self._value.is_done:
            self._raw = self._raw.rstrip()
            self._state = self._key_or_end
        return self._value.is_done

    def _take_name(self) -> None:
        try:
            name = json.loads(self._scalar)
        except ValueError:
            return
        if isinstance(name, str) and self.name is None:
            self.name = name

    def _end(self) -> bool:
        self.is_done = True
        return True

    def _expect(self, states: dict[str, object]) -> bool:
        self._text = self._text.lstrip(WHITESPACE)
        if not self._text:
            return False
        following = states.get(self._text[0])
        if following is None:
            self.is_broken = True
            return False
        self._text = self._text[1:]
        self._state = following  # type: ignore[assignment]
        if self._text or following != self._end:
            return bool(self._text)
        self.is_done = True
        return False


def _string_end(text: str, position: int) -> tuple[int | None, int]:
    """Behind the quote that ends a string whose beginning quote is gone, and how far was looked."""
    while True:
        found = _UNSAFE.search(text, position)
        if found is None:
            return None, len(text)
        if found[0] == '"':
            return found.end(), found.end()
        if found.end() == len(text):
            return None, found.start()
        position = found.end() + 1


class Rewriter:
    """A JSON value again, in the spacing and spelling of `json.dumps`.

    Given out piece by piece; numbers and words once they are complete, strings as they come.
    """

    def __init__(self) -> None:
        self._scanner = ValueScanner()
        self._stack: list[str] = []
        self._open: list[str] = []
        """Brackets that are given out and not closed, but by `closing`."""
        self._has_begun = False
        self._word = ""
        self._in_string = False
        self._escape = ""
        self._is_key = False
        self._expects_key = False
        self._pending = ""
        self.closing = ""
        """What has been closed since the last piece: it changes nothing of a completed value."""

    def feed(self, text: str) -> Iterator[str]:
        """`text` is of the value and nothing else."""
        for char in text:
            piece = self._in(char) if self._in_string else self._out(char)
            if piece:
                yield piece

    def finish(self) -> str:
        """The last word, where the value is one."""
        return self._take_word()

    def closers(self) -> str:
        """What would complete the value after all that was given out."""
        if not self._has_begun:
            return ""
        quote = '"' if self._in_string and not self._is_key else ""
        ends = "".join("}" if bracket == "{" else "]" for bracket in reversed(self._open))
        return quote + self.closing + ends

    def _in(self, char: str) -> str:
        if self._escape:
            return self._escaped(char)
        if char == "\\":
            self._escape = char
            return ""
        if char != '"':
            return self._written(json.dumps(char, ensure_ascii=False)[1:-1])
        self._in_string = False
        if self._is_key:
            self._pending += '"'
        else:
            self.closing += '"'
        return ""

    def _escaped(self, char: str) -> str:
        self._escape += char
        if len(self._escape) == 2 and char == "u":
            return ""
        size = 6 if self._escape[1] == "u" else 2
        if self._escape[1] == "u" and len(self._escape) >= 6:
            if self._is_half() and len(self._escape) < 12:
                if len(self._escape) > 6 and not "\\u".startswith(self._escape[6:8]):
                    return self._flushed_half()
                return ""
            size = 12 if len(self._escape) == 12 else 6
        if len(self._escape) < size:
            return ""
        escape, self._escape = self._escape, ""
        return self._written(_respelled(escape))

    def _is_half(self) -> bool:
        return self._escape[2:4].lower() in ("d8", "d9", "da", "db")

    def _flushed_half(self) -> str:
        """The first half of a pair that has no second."""
        first, rest, self._escape = self._escape[:6], self._escape[6:], ""
        piece = self._written(_respelled(first))
        for char in rest:
            piece += self._in(char)
        return piece

    def _written(self, text: str) -> str:
        if self._is_key:
            self._pending += text
            return ""
        return self._take_pending() + text

    def _out(self, char: str) -> str:
        if char in WHITESPACE or char in ",:]}":
            word = self._take_word()
            return word + self._punctuation(char)
        if char == '"':
            self._is_key = self._expects_key
            self._in_string = True
            self._pending += '"'
            return "" if self._is_key else self._take_pending()
        if char in "{[":
            self._stack.append(char)
            self._expects_key = char == "{"
            self._pending += char
            return ""
        self._word += char
        return ""

    def _punctuation(self, char: str) -> str:
        if char == ",":
            self._pending += ", "
            self._expects_key = bool(self._stack) and self._stack[-1] == "{"
        elif char == ":":
            self._pending += ": "
            self._expects_key = False
        elif char in "]}":
            if self._stack:
                self._stack.pop()
                self._open = self._open[: len(self._stack)]
            self.closing += self._pending + char
            self._pending = ""
        return ""

    def _take_word(self) -> str:
        word, self._word = self._word, ""
        return self._take_pending() + _respelled_word(word) if word else ""

    def _take_pending(self) -> str:
        text = self.closing + self._pending
        self.closing = self._pending = ""
        self._open = list(self._stack)
        self._has_begun = True
        return text


def _respelled(escape: str) -> str:
    try:
        return json.dumps(json.loads(f'"{escape}"'), ensure_ascii=False)[1:-1]
    except ValueError:
        return escape


def _respelled_word(word: str) -> str:
    try:
        return json.dumps(json.loads(word))
    except ValueError:
        return word
