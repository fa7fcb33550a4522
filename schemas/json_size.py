"""What a JSON text holds, found before it is parsed: a parser makes an object of each value.

Looks at bytes only, in pieces between which other threads run.
"""

import re
from collections.abc import Iterator

LIGHT_VALUES = 2_000
"""Up to here a body is parsed and validated in about a millisecond."""
MAX_DIGITS = 400
"""Of a number in a body that is not light; the largest double has 309. Reading one takes time that
grows with the square of its digits."""
_WINDOW = 64 * 1024
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""Everything up to a string that does not end."""
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_MARKS = (b",", b"[", b"{")
"""Each begins a value, or an empty container."""


def is_light(raw: bytes) -> bool:
    """Whether there are surely no more than `LIGHT_VALUES`, those that strings only spell included.

    Unlike `count`, `find` passes over megabytes of base64 as fast as memory is read.
    """
    left = LIGHT_VALUES
    for mark in _MARKS:
        position = raw.find(mark)
        while position >= 0:
            left -= 1
            if left < 0:
                return False
            position = raw.find(mark, position + 1)
    return True


def num_values(raw: bytes, most: int) -> int:
    """Values of a UTF-8 JSON text, keys aside and empty containers counted twice.

    Counting stops somewhere beyond `most`. ValueError for a number of too many digits.
    """
    count = 1
    for text in _outside_strings(raw):
        if _LONG_NUMBER.search(text):
            raise ValueError(f"a number of more than {MAX_DIGITS} digits")
        count += sum(text.count(mark) for mark in _MARKS)
        if count > most:
            break
    return count


def _outside_strings(raw: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(raw):
        window = raw[position : position + _WINDOW]
        whole = _WHOLE.match(window)
        end = whole.end() if whole else 0
        yield _STRING.sub(b"", window[:end])
        position += end
        if end < len(window):
            position = _after_string(raw, position)


def _after_string(raw: bytes, quote: int) -> int:
    start = quote + 1
    end = raw.find(b'"', start)
    if end < 0:
        return len(raw)
    if raw[end - 1] != 0x5C:  # a backslash
        return end + 1
    while start < len(raw):
        match = _REST_OF_STRING.match(raw, start, min(start + 16 * _WINDOW, len(raw)))
        end = match.end() if match else start
        if end < len(raw) and raw[end] == 0x22:
            return end + 1
        start = end if end > start else end + 2  # an escape across the edge of the window
    return len(raw)
