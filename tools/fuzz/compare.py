"""Where two answers to one request differ. Decides nothing about which one is right."""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from schemas.errors import DecodeError
from schemas.mm_item import Field, Tensor, decode_item

_BLOBS = ("features.kwargs_data", "features.mm_metadata")
_GENERATED = re.compile(r"resp_[0-9a-f]{16}")
_ABSENT = "<absent>"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    """0: the connection broke."""
    body: Any


@dataclass(frozen=True, slots=True)
class Difference:
    where: str
    """Path in the answer, list positions left out; for errors: status, type, param or code."""
    ours: Any
    peer: Any

    def __str__(self) -> str:
        ours, peer = (repr(value)[:600] for value in (self.ours, self.peer))
        return f"{self.where}\n    ours {ours}\n    peer {peer}"


def difference(ours: Answer, peer: Answer) -> Difference | None:
    """The first one."""
    if ours.status != peer.status:
        kinds = [f"{a.status} {_error(a).get('type', '')}".strip() for a in (ours, peer)]
        return Difference(f"status {kinds[0]} / {kinds[1]}", ours.body, peer.body)
    if ours.status != 200:
        return _between_errors(ours, peer)
    return next(_walk("", ours.body, peer.body), None)


def _between_errors(ours: Answer, peer: Answer) -> Difference | None:
    for key in ("type", "param", "code"):
        values = [_error(answer).get(key, _ABSENT) for answer in (ours, peer)]
        if values[0] != values[1]:
            kind = f"{key} of error {values[0]} / {values[1]}"
            return Difference(re.sub(r"\.\d+", "[]", kind), ours.body, peer.body)
    return None


def _error(answer: Answer) -> Mapping[str, Any]:
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    return error if isinstance(error, dict) else {}


def _walk(path: str, ours: Any, peer: Any) -> Iterator[Difference]:
    if isinstance(ours, dict) and isinstance(peer, dict):
        yield from _walk_keys(path, ours, peer)
    elif isinstance(ours, list) and isinstance(peer, list) and len(ours) == len(peer):
        if ours != peer:  # long lists of ids are compared whole
            yield from chain.from_iterable(
                _walk(f"{path}[]", one, other) for one, other in zip(ours, peer, strict=True)
            )
    elif type(ours) is not type(peer) or ours != peer:
        yield from _between_leaves(path, ours, peer)


def _walk_keys(path: str, ours: dict[str, Any], peer: dict[str, Any]) -> Iterator[Difference]:
    for key in peer.keys() | ours.keys():
        below = f"{path}.{key}".lstrip(".")
        yield from _walk(below, ours.get(key, _ABSENT), peer.get(key, _ABSENT))


def _between_leaves(path: str, ours: Any, peer: Any) -> Iterator[Difference]:
    if isinstance(ours, str) and isinstance(peer, str):
        if path.lstrip("[].").startswith(_BLOBS):
            yield from _between_items(path, ours, peer)
            return
        if path == "request_id" and _GENERATED.fullmatch(ours) and _GENERATED.fullmatch(peer):
            return
    yield Difference(path, ours, peer)


def _between_items(path: str, ours: str, peer: str) -> Iterator[Difference]:
    try:
        one, other = (decode_item(base64.b64decode(text)) for text in (ours, peer))
    except DecodeError as error:
        yield Difference(path, str(error), "")
        return
    for name in one.keys() | other.keys():
        fields = [_plain(fields.get(name)) for fields in (one, other)]
        if fields[0] != fields[1]:
            yield Difference(f"{path}.{name}", *(_summary(field) for field in fields))


def _plain(field: Field | None) -> Any:
    """Without the slices, which tell of the batch in which an item was processed first."""
    if field is None:
        return _ABSENT
    kwargs = {key: value for key, value in field.kwargs.items() if key != "slices"}
    return field.factory, kwargs, _values(field.data)


def _values(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.dtype, data.shape, bytes(data.data)
    return [_values(value) for value in data] if isinstance(data, list) else (type(data), data)


def _summary(field: Any) -> Any:
    match field:
        case (factory, kwargs, (dtype, shape, bytes(data))):
            return factory, kwargs, dtype, shape, data[:32]
    return field
