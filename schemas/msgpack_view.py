"""Reads one msgpack document without copying its binary parts, and distrusts every length in it.

The msgpack package copies extension data and lets a document of few bytes announce huge containers;
tensors of hundreds of megabytes come in extensions, from strangers. Knows no tensors.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Ext:
    """An extension: its code and a view of its bytes."""

    code: int
    data: memoryview


def read_document(data: bytes | memoryview, *, max_depth: int, max_values: int) -> tuple[Any, int]:
    """The only document in the data, and how many values it holds: maps, lists, str, int, float,
    bool, None and Ext.

    DecodeError for anything else: truncated or trailing bytes, raw binary, repeated or non-string
    keys, more levels or values than allowed.
    """
    reader = _Reader(memoryview(data).cast("B"), max_values)
    value = reader.value(max_depth)
    if reader.position != len(reader.view):
        raise DecodeError(f"{len(reader.view) - reader.position} bytes follow the document")
    return value, max_values - reader.values_left


class _Reader:
    def __init__(self, view: memoryview, max_values: int) -> None:
        self.view = view
        self.position = 0
        self.values_left = max_values

    def value(self, depth: int) -> Any:
        self.values_left -= 1
        if depth < 0 or self.values_left < 0:
            raise DecodeError("the document is nested too deeply or holds too many values")
        code = self.number("B")
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code < 0xC0:
            return self.short(code, depth)
        return self.tagged(code, depth)

    def short(self, code: int, depth: int) -> Any:
        """Forms whose length is in the first byte."""
        if code < 0x90:
            return self.map(code & 0x0F, depth)
        if code < 0xA0:
            return self.list(code & 0x0F, depth)
        return self.text(code & 0x1F)

    def tagged(self, code: int, depth: int) -> Any:
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self.number(_NUMBERS[code])
        if code in _FIXED_EXT:
            return self.ext(_FIXED_EXT[code])
        if code not in _SIZED:
            raise DecodeError(f"msgpack type 0x{code:02x} has no place here")
        read, width = _SIZED[code]
        return read(self, self.number(width), depth)

    def take(self, count: int) -> memoryview:
        start, self.position = self.position, self.position + count
        if self.position > len(self.view):
            raise DecodeError("the document is truncated")
        return self.view[start : self.position]

    def number(self, form: str) -> Any:
        return struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))[0]

    def text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise DecodeError("a string is not UTF-8") from None

    def ext(self, size: int) -> Ext:
        return Ext(self.number("b"), self.take(size))

    def list(self, count: int, depth: int) -> list[Any]:
        self.announce(count)
        return [self.value(depth - 1) for _ in range(count)]

    def map(self, count: int, depth: int) -> dict[str, Any]:
        self.announce(2 * count)
        result: dict[str, Any] = {}
        for _ in range(count):
            key = self.value(0)
            if not isinstance(key, str) or key in result:
                raise DecodeError("map keys must be strings, each once")
            result[key] = self.value(depth - 1)
        return result

    def announce(self, count: int) -> None:
        """A value takes a byte at least: no container can hold more than there are bytes left."""
        if count > len(self.view) - self.position:
            raise DecodeError("the document is truncated")


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCA: "f", 0xCB: "d"} | dict(zip(range(0xCC, 0xD4), "BHIQbhiq", strict=True))
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def _sized_text(reader: _Reader, size: int, depth: int) -> str:
    return reader.text(size)


def _sized_ext(reader: _Reader, size: int, depth: int) -> Ext:
    return reader.ext(size)


_Read = Callable[[_Reader, int, int], Any]
_SIZED: dict[int, tuple[_Read, str]] = {
    0xC7: (_sized_ext, "B"),
    0xC8: (_sized_ext, "H"),
    0xC9: (_sized_ext, "I"),
    0xD9: (_sized_text, "B"),
    0xDA: (_sized_text, "H"),
    0xDB: (_sized_text, "I"),
    0xDC: (_Reader.list, "H"),
    0xDD: (_Reader.list, "I"),
    0xDE: (_Reader.map, "H"),
    0xDF: (_Reader.map, "I"),
}
"""How a type is read, and the width of the length before it."""
