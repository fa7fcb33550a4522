"""Three-axis rotary positions of prompts with grids of patches (Qwen-VL families).

Text advances all axes together; a grid spreads over time, height and width, and text after it
goes on behind the largest position used. Knows no token ids and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """A run of embeddings that form a t x h x w block, row by row."""

    start: int
    """Index of its first token in the prompt."""
    t: int
    h: int
    w: int
    """Merged patches: tokens, not raw patches."""
    time_step: float = 1.0
    """Temporal positions from one time step to the next."""

    @property
    def length(self) -> int:
        return self.t * self.h * self.w


def grid_positions(num_tokens: int, grids: Sequence[Grid]) -> tuple[Tensor, int]:
    """int64 [3, num_tokens] and the position of the token that follows. Grids ascend."""
    pieces: list[Tensor] = []
    token, position = 0, 0
    for grid in grids:
        pieces.append(_text(grid.start - token, position))
        position += grid.start - token
        pieces.append(block := _block(grid) + position)
        position = int(block.max()) + 1
        token = grid.start + grid.length
    pieces.append(_text(num_tokens - token, position))
    return torch.cat(pieces, dim=1), position + num_tokens - token


def _text(length: int, start: int) -> Tensor:
    return (torch.arange(length) + start).expand(3, -1)


def _block(grid: Grid) -> Tensor:
    time = (torch.arange(grid.t) * grid.time_step).long()
    axes = torch.meshgrid(time, torch.arange(grid.h), torch.arange(grid.w), indexing="ij")
    return torch.stack(axes).reshape(3, -1)


def split_grid(
    runs: Sequence[tuple[int, int]],
    grid: Sequence[int],
    merge: int,
    *,
    time_step: float = 1.0,
    by_time: bool = False,
) -> list[Grid]:
    """The grids of one item: one per time step where its runs are, else one for all of it.

    ValueError where the runs do not hold the grid.
    """
    t, h, w = int(grid[0]), int(grid[1]) // merge, int(grid[2]) // merge
    if min(t, h, w) < 1:
        raise ValueError(f"a grid of {t} x {h} x {w} is empty")
    steps = [(start + i * h * w, 1) for start, length in runs for i in range(length // (h * w))]
    if sum(length for _, length in runs) != t * h * w or len(steps) != t:
        raise ValueError(f"runs {runs} do not hold a grid of {t} x {h} x {w}")
    if by_time:
        return [Grid(start, 1, h, w) for start, _ in steps]
    if len(runs) != 1:
        raise ValueError(f"a grid of {t} x {h} x {w} lies in one run, not in {len(runs)}")
    return [Grid(runs[0][0], t, h, w, time_step)]
