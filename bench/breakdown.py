"""Where our processor time goes: bare library calls that a request cannot do without, and the rest.

The calls are made in this process on one core; the whole is what the server used per request.
"""

from collections.abc import Sequence
from pathlib import Path

import orjson
from media_steps import cpu_ms, steps_of
from render_cases import Case, jpeg

from workers.models import pixels

ROUNDS = 30
_GROUPS = {
    "base64": ("base64 in", "base64 out"),
    "hash": ("hash",),
    "decode": ("header", "decode", "to tensor"),
    "resize": ("resize",),
    "patchify": ("patches",),
    "item": ("item",),
}


def print_breakdown(model: str, measured: Sequence[tuple[Case, float]]) -> None:
    """Milliseconds per request, for the cases that process pictures."""
    pixels.use_one_thread()
    titles = [*_GROUPS, "JSON", "sum", "whole", "rest"]
    print(f"\n{'our CPU ms/request':45}" + "".join(f"{title:>9}" for title in titles))
    for case, whole in measured:
        if case.pictures:
            times = _times(model, case)
            known = sum(times)
            row = [*times, known, whole, whole - known]
            print(f"{case.name:45}" + "".join(f"{ms:9.2f}" for ms in row))


def _times(model: str, case: Case) -> list[float]:
    width, height = case.pictures[0]
    steps = steps_of(Path(model), jpeg(width, height), ROUNDS)
    count = len(case.pictures)
    body = b"".join(case.body(0))
    json_ms = cpu_ms(lambda: orjson.loads(body), ROUNDS)
    return [count * sum(steps[name] for name in names) for names in _GROUPS.values()] + [json_ms]
