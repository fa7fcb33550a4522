"""How many values a JSON text has, before it is parsed: a parser makes an object of each.

Looks at bytes only, and at what is outside strings where it matters.
"""

import re

LIGHT_VALUES = 2_000
"""Up to here a body is parsed and validated in about a millisecond."""
_WINDOW = 1024 * 1024
"""Looked at in one go: other threads run in between."""
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
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

    Counting stops somewhere beyond `most`.
    """
    count, position = 1, 0
    while position < len(raw) and count <= most:
        end = min(position + _WINDOW, len(raw))
        quote = raw.find(b'"', position, end)
        if quote >= 0:
            end = quote
        if end > position:
            count += sum(raw.count(mark, position, end) for mark in _MARKS)
        position = _after_string(raw, quote) if quote >= 0 else end
    return count


def _after_string(raw: bytes, quote: int) -> int:
    start = quote + 1
    end = raw.find(b'"', start)
    if end < 0:
        return len(raw)
    if raw[end - 1] != 0x5C:  # a backslash
        return end + 1
    while start < len(raw):
        match = _IN_STRING.match(raw, start, min(start + _WINDOW, len(raw)))
        end = match.end() if match else start
        if end < len(raw) and raw[end] == 0x22:
            return end + 1
        start = end if end > start else end + 2  # an escape across the edge of the window
    return len(raw)
