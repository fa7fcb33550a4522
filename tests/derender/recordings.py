"""Recorded requests and answers of vLLM's derender endpoints, and how answers are compared."""

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"


def recorded(name: str) -> list[dict[str, Any]]:
    path = DATA / "derender" / f"{name}.jsonl"
    packed = path.with_suffix(".jsonl.gz")
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    lines = raw.decode().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def steps_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A sequence of chunks, or the one request there is."""
    return case.get("steps", [case])


def assert_same(expected: Any, got: Any, volatile: list[str]) -> None:
    """Equal but for volatile paths, and nearly equal for log-probabilities."""
    patterns = [_pattern(path) for path in volatile]
    differences = list(_differences(expected, got, "$", patterns))
    assert not differences, differences


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\[\*\]", r"\[\d+\]"))


def _differences(expected: Any, got: Any, path: str, volatile: list[re.Pattern[str]]) -> Any:
    if any(pattern.fullmatch(path) for pattern in volatile):
        return
    if isinstance(expected, dict) and isinstance(got, dict):
        if list(expected) != list(got):  # the order of keys is part of the wire, too
            yield path, list(expected), list(got)
        for key in expected.keys() & got.keys():
            yield from _differences(expected[key], got[key], f"{path}.{key}", volatile)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, pair in enumerate(zip(expected, got, strict=True)):
            yield from _differences(*pair, f"{path}[{index}]", volatile)
    elif isinstance(expected, float) and isinstance(got, float):
        if not math.isclose(expected, got, rel_tol=1e-4, abs_tol=1e-4):
            yield path, expected, got
    elif expected != got or type(expected) is not type(got):
        yield path, expected, got
