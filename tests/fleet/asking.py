"""What the fleet's tests ask, and what of an answer two fleets must agree on."""

import base64
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

MODEL = Path(__file__).parents[1] / "data" / "models" / "tiny-qwen3-vl"
NAME = "tiny"

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
GENERATE = "/inference/v1/generate"


@cache
def picture(seed: int, width: int = 96, height: int = 64) -> str:
    """Data URL of a PNG; another seed is another picture of the same size."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def chat(text: str, pictures: Sequence[str] = (), **options: object) -> dict:
    """A chat body whose answer is the same every time."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    content = [*parts, {"type": "text", "text": text}] if parts else text
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 8,
        **options,
    }


def generate(rendered: dict, *, payload: str | None = None, **options: object) -> dict:
    """A generate body from a render answer; `payload`: the one of its payloads that is kept."""
    features = rendered["features"]
    if payload is not None:
        kept = ("mm_hashes", "mm_placeholders", payload)
        features = {key: features[key] for key in kept}
    return {
        "token_ids": rendered["token_ids"],
        "features": features,
        "sampling_params": {"max_tokens": 8, "temperature": 0},
        **options,
    }


def mixed(count: int) -> list[dict]:
    """Chats of four kinds in turn: text, one picture, two pictures, the same picture twice."""
    kinds = ((), (0,), (0, 1), (0, 0))
    return [
        chat(f"Question {n}?", [picture(3 * n + k) for k in kinds[n % len(kinds)]])
        for n in range(count)
    ]


def agreed(answer: dict) -> dict:
    """Without what differs by right: ids and the time."""
    return {k: v for k, v in answer.items() if k not in ("id", "created", "request_id")}
