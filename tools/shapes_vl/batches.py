"""Makes the batches of the training, in a worker process. Knows no network."""

import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

from . import drawing, pixels
from .dialogues import training_group
from .packing import Batch, Document, Patched, Pictured, assemble, make_document
from .prompts import Prompter
from .questions import SEARCHING_WEIGHTS, SEEING_WEIGHTS

# Shares of the groups by their pictures: one or two of shapes, one of another kind, none.
_SEEING_SHARES = {"one": 0.62, "two": 0.22, "other": 0.09, "none": 0.07}
_SEARCHING_SHARES = {"one": 0.53, "two": 0.33, "other": 0.08, "none": 0.06}
_TOOL_SHARES = {"one": 0.80, "two": 0.06, "other": 0.08, "none": 0.06}
_USUAL_EDGE = 448  # pixels; larger training pictures only cost time, so they are few
_AHEAD = 8  # batches the worker may draw before they are taken


@dataclass(frozen=True)
class Rows:
    count: int
    length: int  # tokens


@dataclass(frozen=True)
class Plan:
    """What a training sees. Conversations with tools are long and have rows of their own."""

    seed: int
    seeing_steps: int  # steps before questions that search for a shape become frequent
    plain: Rows = field(default=Rows(24, 224))
    tools: Rows = field(default=Rows(4, 384))


@dataclass(frozen=True)
class _Theme:
    """What the documents of one batch have in common."""

    tools: bool
    searching: bool
    aspect: tuple[int, int]  # of the pictures that are not square: few grids make large groups

    @property
    def shares(self) -> dict[str, float]:
        if self.tools:
            return _TOOL_SHARES
        return _SEARCHING_SHARES if self.searching else _SEEING_SHARES


class BatchMaker:
    """Makes the batches of step n of a plan; the same number gives the same batches."""

    def __init__(self, prompter: Prompter, plan: Plan):
        self._prompter, self._plan = prompter, plan

    def make(self, step: int) -> list[Batch]:
        """The conversations without tools and those with tools."""
        rng = random.Random(f"batch {self._plan.seed} {step}")
        searching = step >= self._plan.seeing_steps
        return [
            self._filled(rng, rows, _Theme(tools, searching, rng.choice(drawing.ASPECTS)))
            for rows, tools in ((self._plan.plain, False), (self._plan.tools, True))
        ]

    def _filled(self, rng: random.Random, rows: Rows, theme: _Theme) -> Batch:
        """A batch with at least one picture, so that every step trains the vision tower."""
        batch = self._fill(rng, rows, theme)
        while not batch.pictures:
            batch = self._fill(rng, rows, theme)
        return batch

    def _fill(self, rng: random.Random, rows: Rows, theme: _Theme) -> Batch:
        pictures: list[Patched] = []
        filled: list[list[Document]] = []
        document = self._document(rng, theme, pictures)
        for _ in range(rows.count):
            row: list[Document] = []
            room = rows.length
            while not row or document.fits(room):
                if document.fits(room):  # else it is too long for any row: draw another
                    row.append(document)
                    room -= len(document.tokens)
                document = self._document(rng, theme, pictures)
            filled.append(row)
        return assemble(filled, rows.length, pictures)

    def _document(self, rng: random.Random, theme: _Theme, pictures: list[Patched]) -> Document:
        """A new document; its pictures are appended to `pictures`."""
        scenes = _random_scenes(rng, theme.shares)
        shown = Pictured(len(pictures), [])
        for scene in scenes:
            patches, grid = pixels.patchify(_training_picture(scene, rng, theme.aspect))
            pictures.append((patches.numpy(), grid))
            shown.grids.append(grid)
        weights = SEARCHING_WEIGHTS if theme.searching else SEEING_WEIGHTS
        group = training_group(rng, scenes, theme.tools, weights)
        return make_document(self._prompter, group, shown, balanced=theme.searching)


def _random_scenes(rng: random.Random, shares: dict[str, float]) -> tuple[drawing.Scene, ...]:
    kind = rng.choices(list(shares), list(shares.values()))[0]
    if kind == "other":
        return (drawing.random_other(rng),)
    return tuple(drawing.random_scene(rng) for _ in range({"one": 1, "two": 2, "none": 0}[kind]))


def _training_picture(scene: drawing.Scene, rng: random.Random, aspect) -> Image.Image:
    largest = drawing.MAX_EDGE if rng.random() < 0.04 else _USUAL_EDGE
    image = drawing.draw(scene, drawing.random_size(rng, largest, aspect), rng)
    return drawing.through_jpeg(image, rng.randint(60, 95)) if rng.random() < 0.5 else image


def stream(directory: Path, plan: Plan, steps: range) -> Iterator[list[Batch]]:
    """The batches of `steps`, drawn ahead by one worker process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(maxsize=_AHEAD)
    worker = context.Process(target=_work, args=(queue, directory, plan, steps), daemon=True)
    worker.start()
    for _ in steps:
        yield queue.get()
    worker.join()


def _work(queue, directory: Path, plan: Plan, steps: range) -> None:
    torch.set_num_threads(1)
    os.nice(1)  # the training itself must not wait for a core
    maker = BatchMaker(Prompter(directory), plan)
    for step in steps:
        queue.put(maker.make(step))
