"""Draws the pictures of `examples/` with the code that draws the training pictures.

python tools/draw_examples.py --out examples
"""

import argparse
import random
from pathlib import Path

from PIL import Image
from shapes_vl import drawing
from shapes_vl.drawing import Item, Scene

EXAMPLES = {
    "shapes.png": Scene("white", (Item("red", "circle", (0, 0)), Item("blue", "star", (1, 1)))),
    "four-shapes.jpg": Scene(
        "light blue",
        (
            Item("yellow", "star", (0, 0)),
            Item("green", "square", (0, 1)),
            Item("purple", "triangle", (1, 0)),
            Item("red", "star", (1, 1)),
        ),
    ),
    "wide.png": Scene(
        "gray", (Item("orange", "triangle", (0, 1)), Item("black", "circle", (1, 0)))
    ),
    "pair-first.png": Scene(
        "pink",
        (
            Item("blue", "square", (0, 0)),
            Item("blue", "circle", (0, 1)),
            Item("green", "star", (1, 0)),
        ),
    ),
    "pair-second.png": Scene("white", (Item("purple", "triangle", (1, 1)),)),
    "clouds.jpg": Scene(other="clouds"),
}
SIZES = {"wide.png": (480, 360), "four-shapes.jpg": (512, 512)}  # pixels
_SIZE = (256, 256)
_JPEG_QUALITY = 70


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("examples"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, scene in EXAMPLES.items():
        picture(name, scene).save(out / name, quality=_JPEG_QUALITY, optimize=True)


def picture(name: str, scene: Scene) -> Image.Image:
    """The example before it is compressed; its name is the seed."""
    return drawing.draw(scene, SIZES.get(name, _SIZE), random.Random(name))


if __name__ == "__main__":
    main()
