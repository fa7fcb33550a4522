"""Draws the pictures of the demo model: coloured shapes in a 2 x 2 layout, or something else.

Every function takes a `random.Random`, so the same seed draws the same picture.
"""

import io
import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

# Each colour is a line between two RGB anchors (0..255): people draw both soft and pure colours.
SHAPE_COLORS = {
    "red": ((220, 40, 40), (255, 0, 0)),
    "green": ((40, 170, 60), (0, 200, 0)),
    "blue": ((40, 80, 220), (0, 0, 255)),
    "yellow": ((240, 210, 40), (255, 240, 0)),
    "purple": ((150, 60, 180), (128, 0, 128)),
    "orange": ((245, 140, 30), (255, 150, 0)),
    "black": ((20, 20, 20), (0, 0, 0)),
}
GROUND_COLORS = {
    "white": ((255, 255, 255), (250, 250, 250)),
    "gray": ((190, 190, 190), (175, 175, 175)),
    "pink": ((255, 205, 215), (255, 192, 203)),
    "light blue": ((190, 225, 250), (173, 216, 230)),
}
SHAPES = ("circle", "square", "triangle", "star")
# Cell (row, column) of the 2 x 2 layout, in reading order.
PLACES = {(0, 0): "top left", (0, 1): "top right", (1, 0): "bottom left", (1, 1): "bottom right"}
OTHER_KINDS = (
    "gradient", "noise", "clouds", "stripes", "checkerboard", "scribble", "writing", "dots",
    "plain",
)  # fmt: skip
# Width to height, apart from squares; the wide ones are rarer.
ASPECTS = ((4, 3), (3, 4), (5, 4), (4, 5)) * 2 + ((3, 2), (2, 3), (16, 9), (9, 16))
MIN_EDGE, MAX_EDGE = 96, 1024  # pixels


@dataclass(frozen=True)
class Item:
    """One shape: its colour, its form and the cell (row, column) it lies in."""

    color: str
    shape: str
    cell: tuple[int, int]

    @property
    def place(self) -> str:
        return PLACES[self.cell]


@dataclass(frozen=True)
class Scene:
    """What a picture shows: items in reading order on a ground; `other` names another kind."""

    ground: str = ""
    items: tuple[Item, ...] = ()
    other: str = ""


def random_scene(rng: random.Random) -> Scene:
    """A scene of one to four shapes, each in its own cell."""
    count = rng.choices((1, 2, 3, 4), (22, 28, 28, 22))[0]
    cells = sorted(rng.sample(list(PLACES), count))
    # A small palette and few forms make repeated shapes, which the questions about numbers need.
    shapes = SHAPES if rng.random() < 0.7 else rng.sample(SHAPES, 2)
    colors = list(SHAPE_COLORS) if rng.random() < 0.8 else rng.sample(list(SHAPE_COLORS), 2)
    items = tuple(Item(rng.choice(colors), rng.choice(shapes), cell) for cell in cells)
    return Scene(rng.choice(list(GROUND_COLORS)), items)


def random_other(rng: random.Random) -> Scene:
    """A picture of another kind."""
    return Scene(other=rng.choice(OTHER_KINDS))


def random_size(
    rng: random.Random, largest: int = MAX_EDGE, aspect: tuple[int, int] | None = None
) -> tuple[int, int]:
    """(width, height) in pixels, both edges within MIN_EDGE..largest.

    Half of the pictures are square, the others have `aspect` or one of ASPECTS.
    """
    wide, high = (1, 1) if rng.random() < 0.5 else (aspect or rng.choice(ASPECTS))
    top = largest / max(wide, high) * min(wide, high)
    short = math.exp(rng.uniform(math.log(MIN_EDGE), math.log(top)))
    unit = short / min(wide, high)
    return round(wide * unit), round(high * unit)


def draw(scene: Scene, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """The picture of `scene` as an RGB image of `size` = (width, height) pixels."""
    if scene.other:
        return _OTHER_PAINTERS[scene.other](size, rng).convert("RGB")
    scale = 2 if rng.random() < 0.5 and max(size) <= 512 else 1  # half of them with smooth edges
    width, height = size[0] * scale, size[1] * scale
    image = Image.new("RGB", (width, height), _shade(GROUND_COLORS[scene.ground], rng, 5))
    canvas = ImageDraw.Draw(image)
    for item in scene.items:
        _draw_item(canvas, item, (width, height), rng)
    return image if scale == 1 else image.resize(size, Image.Resampling.BOX)


def through_jpeg(image: Image.Image, quality: int) -> Image.Image:
    """The image after JPEG compression, as a camera or a browser would send it."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


def _shade(anchors: tuple, rng: random.Random, spread: int) -> tuple[int, int, int]:
    """A colour near the line between two anchors."""
    share = rng.random()
    mixed = (a + (b - a) * share for a, b in zip(*anchors, strict=True))
    return tuple(min(255, max(0, round(value) + rng.randint(-spread, spread))) for value in mixed)


def _draw_item(canvas: ImageDraw.ImageDraw, item: Item, size: tuple[int, int], rng: random.Random):
    cell_width, cell_height = size[0] / 2, size[1] / 2
    edge = min(cell_width, cell_height)
    radius = edge * rng.uniform(0.25, 0.40)
    x = cell_width * (item.cell[1] + 0.5) + edge * rng.uniform(-0.08, 0.08)
    y = cell_height * (item.cell[0] + 0.5) + edge * rng.uniform(-0.08, 0.08)
    color = _shade(SHAPE_COLORS[item.color], rng, 12)
    if item.shape == "circle":
        canvas.ellipse([x - radius, y - radius, x + radius, y + radius], fill=color)
        return
    turn = math.radians(rng.uniform(-8, 8)) if rng.random() < 0.5 else 0.0
    canvas.polygon([(x + px, y + py) for px, py in _outline(item.shape, radius, turn)], fill=color)


def _outline(shape: str, radius: float, turn: float) -> list[tuple[float, float]]:
    """Corner points around the origin, turned by `turn` radians."""
    if shape == "square":
        points = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    elif shape == "triangle":
        points = [(0, -1), (1, 1), (-1, 1)]
    else:
        angles = [-math.pi / 2 + k * math.pi / 5 for k in range(10)]
        lengths = [1.1 if k % 2 == 0 else 0.45 for k in range(10)]
        points = [(q * math.cos(a), q * math.sin(a)) for q, a in zip(lengths, angles, strict=True)]
    cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
    return [(px * cos - py * sin, px * sin + py * cos) for px, py in points]


def _any_color(rng: random.Random) -> tuple[int, int, int]:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _noise(size: tuple[int, int], rng: random.Random) -> np.ndarray:
    """uint8 noise of shape [height, width, 3]."""
    generator = np.random.default_rng(rng.getrandbits(32))
    return generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def _gradient(size, rng):
    start, end = (np.array(_any_color(rng), float) for _ in range(2))
    angle = rng.uniform(0, 2 * math.pi)
    x = np.linspace(-1, 1, size[0])[None, :] * math.cos(angle)
    y = np.linspace(-1, 1, size[1])[:, None] * math.sin(angle)
    share = ((x + y) / 1.5 + 1) / 2
    return Image.fromarray(
        np.clip(start + (end - start) * share[..., None], 0, 255).astype(np.uint8)
    )


def _static(size, rng):
    coarse = rng.choice((1, 2, 4, 8))
    small = (max(2, size[0] // coarse), max(2, size[1] // coarse))
    return Image.fromarray(_noise(small, rng)).resize(size, Image.Resampling.NEAREST)


def _clouds(size, rng):
    """A soft texture with the statistics of a blurred photograph."""
    image = Image.new("RGB", size, _any_color(rng))
    for cells in (3, 6, 12, 24):
        layer = Image.fromarray(_noise((cells, cells), rng)).resize(size, Image.Resampling.BICUBIC)
        image = Image.blend(image, layer, rng.uniform(0.2, 0.5))
    return image


def _stripes(size, rng):
    image = Image.new("RGB", size, _any_color(rng))
    canvas = ImageDraw.Draw(image)
    colors = [_any_color(rng) for _ in range(rng.randint(1, 3))]
    step = max(4, round(min(size) * rng.uniform(0.05, 0.25)))
    slant = rng.choice((0, 0, 1, -1)) * size[1]
    upright = rng.random() < 0.5
    for k, at in enumerate(range(-2 * max(size), 3 * max(size), 2 * step)):
        ends = [(at, 0), (at + slant, size[1])] if upright else [(0, at), (size[0], at + slant)]
        canvas.line(ends, fill=colors[k % len(colors)], width=step)
    return image


def _checkerboard(size, rng):
    image = Image.new("RGB", size, _any_color(rng))
    canvas = ImageDraw.Draw(image)
    color, step = _any_color(rng), max(4, round(min(size) * rng.uniform(0.06, 0.2)))
    for row in range(size[1] // step + 1):
        for column in range(row % 2, size[0] // step + 1, 2):
            x, y = column * step, row * step
            canvas.rectangle([x, y, x + step - 1, y + step - 1], fill=color)
    return image


def _scribble(size, rng):
    image = Image.new("RGB", size, _ground_like(rng))
    canvas = ImageDraw.Draw(image)
    for _ in range(rng.randint(2, 8)):
        points = [
            (rng.uniform(0, size[0]), rng.uniform(0, size[1])) for _ in range(rng.randint(3, 9))
        ]
        canvas.line(
            points, fill=_any_color(rng), width=max(1, round(min(size) * rng.uniform(0.01, 0.04)))
        )
    return image


def _writing(size, rng):
    """Lines of short strokes, like a page seen from afar."""
    image = Image.new("RGB", size, _ground_like(rng))
    canvas = ImageDraw.Draw(image)
    ink = tuple(rng.randrange(90) for _ in range(3))
    step = max(7, round(min(size) * rng.uniform(0.07, 0.16)))
    for top in range(step // 2, size[1] - step // 2, step):
        x = step
        while x < size[0] - step:
            height = step * rng.uniform(0.3, 0.65)
            lean = rng.uniform(-0.25, 0.25) * step
            canvas.line([(x, top + height), (x + lean, top)], fill=ink, width=max(1, step // 8))
            x += step * rng.choice((0.3, 0.4, 0.5, 1.0))
    return image


def _dots(size, rng):
    image = Image.new("RGB", size, _ground_like(rng))
    canvas = ImageDraw.Draw(image)
    for _ in range(rng.randint(25, 80)):
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        radius = min(size) * rng.uniform(0.012, 0.05)
        canvas.ellipse([x - radius, y - radius, x + radius, y + radius], fill=_any_color(rng))
    return image


def _plain(size, rng):
    image = Image.new("RGB", size, _any_color(rng) if rng.random() < 0.5 else _ground_like(rng))
    return image.filter(ImageFilter.GaussianBlur(1))


def _ground_like(rng: random.Random) -> tuple[int, int, int]:
    """A ground colour of the shape pictures, so that the ground alone gives nothing away."""
    return _shade(GROUND_COLORS[rng.choice(list(GROUND_COLORS))], rng, 5)


_OTHER_PAINTERS = {
    "gradient": _gradient, "noise": _static, "clouds": _clouds, "stripes": _stripes,
    "checkerboard": _checkerboard, "scribble": _scribble, "writing": _writing, "dots": _dots,
    "plain": _plain,
}  # fmt: skip
