"""Stop strings in text that comes in pieces: nothing that may be part of one is given out early.

Pure. Knows neither tokens nor what the text is.
"""

from collections.abc import Sequence

from workers.derender.outputs import StopRules, find_stop


class StopStrings:
    """One text. What may be the beginning of a stop string waits until that is settled."""

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        """`is_included`: the stop string stays in the text."""
        self._stops = stops
        self._is_included = is_included
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text; nothing is taken after it."""

    def push(self, text: str, *, counts: bool = True) -> str:
        """The text that is certain now. `counts`: whether a stop string may end within `text`."""
        if self.found is not None or not self._stops:
            return "" if self.found is not None else text
        whole = self._held + text
        match = find_stop(whole, len(text), self._stops) if counts else None
        if match is None:
            end = len(whole) - self._open_end(whole)
            self._held = whole[end:]
            return whole[:end]
        start, self.found = match
        self._held = ""
        return whole[: start + (len(self.found) if self._is_included else 0)]

    def finish(self) -> str:
        """What has waited; the text has ended."""
        held, self._held = self._held, ""
        return held

    def _open_end(self, text: str) -> int:
        """Characters at the end that a stop string may begin with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0


def cut_at(text: str | None, stop: str, rules: StopRules) -> str | None:
    """Text up to a stop string that is known to be in it."""
    if text is None:
        return None
    start = text.find(stop)
    end = start + len(stop) if rules.is_included else start
    return text if start < 0 else text[:end]
