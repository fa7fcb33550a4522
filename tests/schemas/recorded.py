"""Reads the recorded bodies and answers under tests/data/wire, and the full corpus where it is."""

import base64
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.limits import ModelLimits
from schemas.routes import Kind

DATA = Path(__file__).parent.parent / "data" / "wire"
CORPUS = os.environ.get("GOLDEN_CORPUS")
"""Folder of recorded cases; only tests of the whole corpus need it."""


@dataclass(frozen=True)
class Case:
    """One recorded request: the bytes sent, the deployment, and what came back."""

    id: str
    kind: Kind
    raw: bytes
    limits: ModelLimits
    has_parser: bool
    status: int
    error: tuple[str, str | None, str] | None
    """type, param and message."""


def cases() -> list[Case]:
    data = json.loads((DATA / "errors.json").read_text())
    limits = [dict(entry) for entry in data["limits"]]
    parsers = [entry.pop("has_parser") for entry in limits]
    built = [ModelLimits(**e | {"served_names": tuple(e["served_names"])}) for e in limits]
    return [
        Case(
            id=case["id"],
            kind=Kind(case["kind"]),
            raw=_raw(case),
            limits=built[case["limits"]],
            has_parser=parsers[case["limits"]],
            status=case["status"],
            error=tuple(case["error"]) if "error" in case else None,
        )
        for case in data["cases"]
    ]


def _raw(case: dict[str, Any]) -> bytes:
    if "body_base64" in case:
        return base64.b64decode(case["body_base64"])
    return case["body"].encode()


def answers() -> dict[str, list[Any]]:
    """Recorded answers by kind of answer."""
    return json.loads((DATA / "answers.json").read_text())["answers"]


def sampling_params() -> list[dict[str, Any]]:
    """Recorded `sampling_params` of rendered requests."""
    return json.loads((DATA / "answers.json").read_text())["sampling"]


def items() -> list[bytes]:
    return [base64.b64decode(text) for text in json.loads((DATA / "items.json").read_text())]


def corpus_items() -> Iterator[bytes]:
    """Every decodable kwargs_data and mm_metadata entry of the corpus, each once."""
    root = Path(str(CORPUS))
    seen: set[str] = set()
    for path in sorted(root.glob("*/*.json")):
        if path.parent.name == "errors":
            continue  # garbage on purpose
        for text in _payloads(json.loads(path.read_text()), root):
            if text not in seen:
                seen.add(text)
                yield base64.b64decode(text)


def _payloads(node: Any, root: Path) -> Iterator[str]:
    if isinstance(node, list):
        for child in node:
            yield from _payloads(child, root)
    if not isinstance(node, dict):
        return
    for key, child in node.items():
        if key in ("kwargs_data", "mm_metadata") and isinstance(child, dict):
            entries = [e for listed in child.values() if isinstance(listed, list) for e in listed]
            yield from (_text(e, root) for e in entries if e is not None)
        else:
            yield from _payloads(child, root)


def _text(entry: str | dict[str, Any], root: Path) -> str:
    if isinstance(entry, str):
        return entry
    return gzip.decompress((root / "blobs" / f"{entry['$blob']}.gz").read_bytes()).decode()
