"""Lists of calls written as JSON, as they come: `[{"name": …, "arguments": {…}}, …]`."""

import json
from collections.abc import Collection

from workers.text.parsers.base import MALFORMED, Delta
from workers.text.parsers.json_scan import WHITESPACE, ObjectScanner


class CallList:
    """One list, or one object where that may stand for it. Mutable."""

    def __init__(
        self,
        arguments: Collection[str] = ("arguments",),
        *,
        takes_object: bool = False,
        waits_for_arguments: bool = False,
        unquotes: bool = False,
    ) -> None:
        """`waits_for_arguments`: a name goes out with the first of its arguments.

        `unquotes`: arguments that are a JSON string are given out as its text.
        """
        self._keys = arguments
        self._takes_object = takes_object
        self._waits = waits_for_arguments
        self._unquotes = unquotes
        self._has_begun = False
        self._is_list = False
        self._call: ObjectScanner | None = None
        self._is_named = False
        self._is_quoted: bool | None = None
        self._quoted = ""
        self.num_named = 0
        """Calls that were given out: those without a name do not count."""
        self.is_done = False
        self.is_broken = False
        """This is no list of objects, from here on."""

    def feed(self, text: str, deltas: list[Delta]) -> str:
        """The text left over behind the list."""
        while text and not (self.is_done or self.is_broken):
            text = (
                self._between(text) if self._call is None else self._read(self._call, text, deltas)
            )
        return text

    def _between(self, text: str) -> str:
        text = text.lstrip(WHITESPACE)
        if not text:
            return ""
        char = text[0]
        if char == "{" and (self._has_begun or self._takes_object):
            self._has_begun, self._is_named = True, False
            self._is_quoted, self._quoted = None, ""
            self._call = ObjectScanner(self._keys)
            return text
        if char == "[" and not self._has_begun:
            self._has_begun = self._is_list = True
        elif char == "]" and self._is_list:
            self.is_done = True
        elif char != "," or not self._is_list:
            self.is_broken = True
            return text
        return text[1:]

    def _read(self, call: ObjectScanner, text: str, deltas: list[Delta]) -> str:
        rest = call.feed(text)
        self._give(call, deltas)
        if call.is_done:
            self._call = None
            self.is_done = not self._is_list
        self.is_broken = call.is_broken
        return rest

    def _give(self, call: ObjectScanner, deltas: list[Delta]) -> None:
        if not call.name or (self._waits and not call.has_arguments):
            return
        if not self._is_named:
            self._is_named = True
            self.num_named += 1
            deltas.append(Delta("tool", tool=self.num_named - 1, name=call.name))
        arguments = self._unquoted(call, call.take()) if self._unquotes else call.take()
        if arguments:
            deltas.append(Delta("tool", arguments, self.num_named - 1))

    def _unquoted(self, call: ObjectScanner, raw: str) -> str:
        if self._is_quoted is None and raw:
            self._is_quoted = raw.startswith('"')
        if not self._is_quoted:
            return raw
        self._quoted += raw
        if not call.is_done:
            return ""
        try:
            return str(json.loads(self._quoted))
        except MALFORMED:
            return ""
