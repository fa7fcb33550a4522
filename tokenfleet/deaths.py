"""When a server process that died is started again, and when no more. Pure."""

from dataclasses import dataclass

_STEADY_S = 60.0
"""Who has served for that long did not die of how it was started."""
_LONGEST_PAUSE_S = 30.0
_MOST_STARTS = 3


@dataclass(frozen=True, slots=True)
class Deaths:
    """Of the processes that had one place, up to now."""

    in_a_row: int = 0
    at_start: int = 0
    """In a row, before they served anything."""

    def after(self, served_s: float | None) -> "Deaths":
        """One more, after it has served for a while, or (None) never."""
        is_steady = served_s is not None and served_s >= _STEADY_S
        return Deaths(
            in_a_row=1 if is_steady else self.in_a_row + 1,
            at_start=self.at_start + 1 if served_s is None else 0,
        )

    @property
    def is_hopeless(self) -> bool:
        return self.at_start >= _MOST_STARTS

    @property
    def pause_s(self) -> float:
        """Before the next start; none after a single death, because a port wants to be served."""
        return min(2.0 ** (self.in_a_row - 2), _LONGEST_PAUSE_S) if self.in_a_row > 1 else 0.0
