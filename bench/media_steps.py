"""Where the time of an image request goes in render: each step alone, then the whole pipeline.

    python bench/media_steps.py MODEL_DIR [--rounds 30]

Processor time of one thread for the steps; processor and wall time for the pipeline. Pictures are
new unless said otherwise, so nothing is found in a store.
"""

import argparse
import asyncio
import base64
import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pybase64
from blake3 import blake3
from PIL import Image

from runtime.settings import ModelSettings, RenderSettings
from runtime.storage.memory_blobs import MemoryBlobs
from workers.models import hashing, images, items, pixels
from workers.models.families import build_family
from workers.models.limits import MediaLimits
from workers.models.media import MediaPipeline
from workers.render.media import MediaPart
from workers.text.tokenizer import Tokenizer

SIZES = ((512, 512), (720, 720), (1024, 1024), (1280, 720))


def jpeg(width: int, height: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def cpu_ms(call: Callable[[], Any], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return statistics.median(times) * 1000


def steps_of(folder: Path, data: bytes, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of each step of one picture."""
    vocabulary = Tokenizer.from_directory(folder)
    family = build_family(folder, vocabulary, dtype="auto", server_options={}, raw_pixels=True)
    assert family is not None
    limits, options = MediaLimits(), images.ImageOptions()
    text = base64.b64encode(data).decode()
    image = images.decode(data, options, limits).image
    processing = family.options("image", {})
    plan = family.plan_image(image.width, image.height, processing)
    is_resized = plan.shape != (image.height, image.width)
    fields = {**family.process_image(image, plan, processing), **plan.metadata}
    item = items.encode(fields)
    calls: dict[str, Callable[[], Any]] = {
        "base64 in": lambda: pybase64.b64decode(text, validate=True),
        "header": lambda: images.read_header(data, options, limits),
        "hash": lambda: hashing.item_id("image", hashing.ImageFile(data), model="m"),
        "decode": lambda: images.decode(data, options, limits),
        "to tensor": lambda: None if is_resized else pixels.of_planes(image),
        "resize": lambda: pixels.resized_planes(image, *plan.shape) if is_resized else None,
        "patches": lambda: items.encode(fields),
        "item": lambda: items.encode(plan.metadata),
        "digest": lambda: blake3(item).hexdigest(),
        "base64 out": lambda: pybase64.b64encode(item),
    }
    return {name: cpu_ms(call, rounds) for name, call in calls.items()}


async def whole(
    folder: Path, width: int, height: int, rounds: int, count: int
) -> list[tuple[float, float]]:
    """(processor, wall) milliseconds per request: new pictures, the same again, without tensors."""
    pipeline = MediaPipeline(
        ModelSettings(model=str(folder)),
        RenderSettings(),
        MemoryBlobs(),
        None,
        vocabulary=Tokenizer.from_directory(folder),
    )
    await pipeline.start()
    requests = []
    for number in range(rounds + 1):
        urls = [
            "data:image/jpeg;base64," + base64.b64encode(jpeg(width, height, seed)).decode()
            for seed in range(number * count, (number + 1) * count)
        ]
        requests.append([MediaPart("image", "url", "image_url", url) for url in urls])

    async def one(parts: list[MediaPart], want_tensors: bool) -> tuple[float, float]:
        start, cpu = time.perf_counter(), time.process_time()
        await pipeline.load(
            parts,
            mm_processor_kwargs=None,
            media_io_kwargs=None,
            tenant="",
            want_tensors=want_tensors,
        )
        return (time.process_time() - cpu) * 1000, (time.perf_counter() - start) * 1000

    new = [await one(parts, True) for parts in requests][1:]
    again = [await one(parts, True) for parts in requests][1:]
    bare = [await one(parts, False) for parts in requests][1:]
    await pipeline.close()
    return [
        (statistics.median(t[0] for t in times), statistics.median(t[1] for t in times))
        for times in (new, again, bare)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    pixels.use_one_thread()
    for width, height in SIZES:
        times = steps_of(arguments.model, jpeg(width, height, 0), arguments.rounds)
        print(f"{width}x{height} " + " ".join(f"{name} {ms:.2f}" for name, ms in times.items()))
        out = times.pop("base64 out")
        print(f"    sum {sum(times.values()):.2f} ms, base64 of the answer {out:.2f} ms")
    for width, height, count in [(*size, 1) for size in SIZES] + [(1280, 720, 4)]:
        results = asyncio.run(whole(arguments.model, width, height, arguments.rounds, count))
        told = [
            f"{name} {cpu:.2f} ({wall:.2f} wall)"
            for name, (cpu, wall) in zip(("new", "again", "without tensors"), results, strict=True)
        ]
        print(f"pipeline {count} x {width}x{height}: {', '.join(told)}")


if __name__ == "__main__":
    main()
