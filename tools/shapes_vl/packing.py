"""Packs examples about the same pictures into rows of fixed length. Draws and asks nothing.

A group of examples is one *document*: the tokens all its prompts begin with (the trunk) once, then
one branch for each question. A branch sees the trunk and itself only, so each question is learned
as if it stood alone, while its pictures and its trunk are computed once.
"""

from dataclasses import dataclass, field

import numpy as np

from . import pixels
from .dialogues import Example
from .prompts import Prompter

IGNORED = -100  # label of a token whose prediction does not count

Grid = tuple[int, int]  # rows and columns of patches
Patched = tuple[np.ndarray, Grid]  # uint8 [patches, 768]


@dataclass
class Batch:
    """Arrays of R rows of L tokens."""

    tokens: np.ndarray  # int64 [R, L]
    labels: np.ndarray  # int64 [R, L], the token itself where it belongs to an answer
    weights: np.ndarray  # float32 [R, L], of the labels in the loss
    positions: np.ndarray  # int64 [3, R, L]
    document: np.ndarray  # int16 [R, L], -1 for padding
    branch: np.ndarray  # int16 [R, L], 0 for the trunk
    pictures: dict[Grid, np.ndarray]  # uint8 [pictures, patches, 768]
    image_at: np.ndarray  # int64 [image tokens], flat positions in R * L
    image_row: np.ndarray  # int64 [image tokens], their rows among the features of `pictures`


@dataclass
class Document:
    """Flat token lists; `images` holds (offset of the first image token, picture in the batch)."""

    tokens: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    images: list[tuple[int, int]] = field(default_factory=list)
    branch_starts: list[int] = field(default_factory=list)

    def fits(self, room: int) -> bool:
        """Whether the document fits; up to half of its branches are dropped to make it fit."""
        ends = [*self.branch_starts[1:], len(self.tokens)]
        count = sum(end <= room for end in ends)
        if count < (len(ends) + 1) // 2:
            return False
        self._cut(ends[count - 1])
        del self.branch_starts[count:]
        return True

    def add(self, prompt: list[int], answer: list[int], weight: float, branch: int) -> None:
        """Appends tokens of one branch; `weight` is that of each answer token."""
        self.tokens += [*prompt, *answer]
        self.labels += [IGNORED] * len(prompt) + answer
        self.weights += [0.0] * len(prompt) + [weight] * len(answer)
        self.branch += [branch] * (len(prompt) + len(answer))

    def _cut(self, end: int) -> None:
        for column in (self.tokens, self.labels, self.weights, self.positions, self.branch):
            del column[end:]
        self.images = [(at, picture) for at, picture in self.images if at < end]


@dataclass(frozen=True)
class Pictured:
    """The pictures of one group: the number of the first one in the batch, and their grids."""

    first: int
    grids: list[Grid]


def make_document(
    prompter: Prompter, group: list[Example], shown: Pictured, *, balanced: bool
) -> Document:
    """The document of a group; `balanced` gives long answers less weight per token."""
    sizes = [rows * columns // pixels.MERGE**2 for rows, columns in shown.grids]
    prompts = [prompter.prompt_tokens(example, sizes) for example in group]
    trunk = _trunk_length(prompts, prompter.image_pad)
    document = Document()
    document.add(prompts[0][:trunk], [], 0.0, branch=0)
    _place(document, prompts[0][:trunk], 0, prompter.image_pad, shown)
    for number, (prompt, example) in enumerate(zip(prompts, group, strict=True), start=1):
        answer = prompter.answer_tokens(example)
        document.branch_starts.append(len(document.tokens))
        document.add(prompt[trunk:], answer, len(answer) ** -0.5 if balanced else 1.0, number)
        _place(document, prompt + answer, trunk, prompter.image_pad, shown)
    return document


def _trunk_length(prompts: list[list[int]], image_pad: int) -> int:
    """Length of the common beginning; it leaves a token to each branch and cuts no picture."""
    length = 0
    for column in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    while length and prompts[0][length - 1] == image_pad:
        length -= 1
    return length


def _place(
    document: Document, tokens: list[int], trunk: int, image_pad: int, shown: Pictured
) -> None:
    """Adds positions and pictures of `tokens` beyond the trunk, which is placed already."""
    positions, images = _positions(tokens, image_pad, shown.grids)
    base = len(document.positions) - trunk
    document.positions += positions[trunk:]
    document.images += [(base + at, shown.first + n) for at, n in images if at >= trunk]


def _positions(tokens: list[int], image_pad: int, grids: list[Grid]):
    """(t, h, w) of each token as get_rope_index does; (offset, number) of each picture."""
    positions: list[tuple[int, int, int]] = []
    images: list[tuple[int, int]] = []
    here, index = 0, 0
    while index < len(tokens):
        if tokens[index] != image_pad:
            positions.append((here, here, here))
            here, index = here + 1, index + 1
            continue
        rows, columns = (edge // pixels.MERGE for edge in grids[len(images)])
        images.append((index, len(images)))
        positions += [(here, here + i, here + j) for i in range(rows) for j in range(columns)]
        here, index = here + max(rows, columns), index + rows * columns
    return positions, images


def assemble(rows: list[list[Document]], length: int, pictures: list[Patched]) -> Batch:
    """The batch of rows of documents; pictures that no document shows are left out."""
    shape = (len(rows), length)
    columns = {
        "tokens": np.zeros(shape, np.int64),
        "labels": np.full(shape, IGNORED, np.int64),
        "weights": np.zeros(shape, np.float32),
        "branch": np.zeros(shape, np.int16),
    }
    positions, document = np.zeros((3, *shape), np.int64), np.full(shape, -1, np.int16)
    shown: list[tuple[int, int]] = []  # (flat position, picture)
    for r, row in enumerate(rows):
        start = 0
        for number, part in enumerate(row):
            end = start + len(part.tokens)
            for name, column in columns.items():
                column[r, start:end] = getattr(part, name)
            positions[:, r, start:end] = np.array(part.positions).T
            document[r, start:end] = number
            shown += [(r * length + start + at, picture) for at, picture in part.images]
            start = end
    stacked, image_at, image_row = _gather_pictures(shown, pictures)
    return Batch(
        **columns, positions=positions, document=document,
        pictures=stacked, image_at=image_at, image_row=image_row,
    )  # fmt: skip


def _gather_pictures(shown: list[tuple[int, int]], pictures: list[Patched]):
    """Stacks the shown pictures by grid; maps each image token to its row of features."""
    by_grid: dict[Grid, list[int]] = {}
    for picture in sorted({picture for _, picture in shown}):
        by_grid.setdefault(pictures[picture][1], []).append(picture)
    first_row, rows = {}, 0
    for grid, members in by_grid.items():
        for picture in members:
            first_row[picture] = rows
            rows += grid[0] * grid[1] // pixels.MERGE**2
    image_at, image_row = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for flat, picture in shown:
        high, wide = pictures[picture][1]
        tokens = np.arange(high * wide // pixels.MERGE**2)
        image_at.append(flat + tokens)
        image_row.append(first_row[picture] + tokens)
    stacked = {
        grid: np.stack([pictures[picture][0] for picture in members])
        for grid, members in by_grid.items()
    }
    return stacked, np.concatenate(image_at), np.concatenate(image_row)
