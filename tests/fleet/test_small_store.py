"""Answers that are larger than the store of their process."""

import asyncio
import base64

from tests.fleet.asking import chat, picture
from tests.fleet.embedded import Running, whole_fleet

RENDER = "/v1/chat/completions/render"


async def test_tensors_of_requests_under_way_are_not_forgotten(tmp_path):
    """Each answer is larger than the store, and eight of them are made at once."""
    store_bytes = 1024 * 1024
    async with Running(whole_fleet(tmp_path, store_memory_bytes=store_bytes), tmp_path) as fleet:
        bodies = [
            chat("These?", [picture(3 * n + k, 448, 448) for k in range(3)]) for n in range(8)
        ]
        answers = await asyncio.gather(*(fleet.ask(RENDER, body) for body in bodies))

    for answer in answers:
        tensors = answer["features"]["kwargs_data"]["image"]
        assert len(tensors) == 3
        assert sum(len(base64.b64decode(item)) for item in tensors) > store_bytes
