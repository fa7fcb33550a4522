"""The text of a choice as it grows, and where a stop string ends it.

Knows no tensors; how ids become text is a function it is given.
"""

from collections.abc import Callable, Sequence

from workers.models.engine.stopping import Match, find_stop


class GrowingText:
    """One choice's text, owned by its request."""

    def __init__(
        self,
        decode: Callable[[int], str],
        *,
        stops: Sequence[str],
        min_tokens: int,
        keeps_stop: bool,
    ) -> None:
        self.text = ""
        self._decode = decode
        self._stops = stops
        self._min_tokens = min_tokens
        self._keeps_stop = keeps_stop
        self._num_tokens = 0
        self._held = max((len(stop) for stop in stops), default=1) - 1
        self._released = 0

    def push(self, token_id: int, *, is_hidden: bool) -> str | None:
        """Append a token; return the stop string that it completed, with the text cut there."""
        self._num_tokens += 1
        if is_hidden:
            return None
        seen = len(self.text)
        self.text += self._decode(token_id)
        # Text of the first min_tokens tokens is never searched, not even later.
        if self._num_tokens <= self._min_tokens or len(self.text) == seen:
            return None
        match = find_stop(self.text, self._stops, search_from=seen)
        return None if match is None else self._cut(match)

    def release(self, *, is_over: bool) -> str:
        """Text that is certain and was not released yet; what may begin a stop string waits."""
        end = len(self.text) if is_over else max(len(self.text) - self._held, self._released)
        released = self.text[self._released : end]
        self._released = end
        return released

    def _cut(self, match: Match) -> str:
        self.text = self.text[: match.end if self._keeps_stop else match.start]
        return match.stop
