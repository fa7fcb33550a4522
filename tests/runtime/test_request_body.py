"""Bodies that one role of a process reads and the next takes over."""

import json
from typing import Any

import pytest

from runtime import request_body
from runtime.request_body import RequestBodies
from runtime.stage import Job
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.chat import ChatCompletionRequest
from schemas.envelope import REQUEST, Envelope
from schemas.errors import ApiError
from schemas.limits import ModelLimits
from schemas.routes import Kind

LIMITS = ModelLimits(max_model_len=4096, vocab_size=100, served_names=("m",))


def chat(text: str = "hi", **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


def job(raw: bytes, *, name: str = "a", kind: Kind = Kind.CHAT_RENDER) -> Job:
    envelope = Envelope(
        id=name, kind=kind, created_ms=0, deadline_ms=2**40, parts={REQUEST: raw}
    )  # fmt: skip
    return Job(envelope, MemoryBlobs())


async def test_a_kept_body_is_taken_over_once() -> None:
    bodies = RequestBodies(LIMITS)
    first, raw = await bodies.read(job(chat()))
    bodies.keep(job(chat()), first, raw)

    second, _ = await bodies.read(job(chat()))
    third, _ = await bodies.read(job(chat()))

    assert second is first
    assert third is not first
    assert isinstance(third, ChatCompletionRequest)


@pytest.mark.parametrize(
    "other",
    [
        job(chat("ho")),
        job(chat(), name="b"),
        job(chat(), kind=Kind.CHAT),
    ],
    ids=["bytes", "request", "kind"],
)
async def test_nothing_else_is_mistaken_for_it(other: Job) -> None:
    bodies = RequestBodies(LIMITS)
    kept, raw = await bodies.read(job(chat()))
    bodies.keep(job(chat()), kept, raw)

    assert (await bodies.read(other))[0] is not kept


async def test_what_nobody_takes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "_MAX_KEPT", 3)
    monkeypatch.setattr(request_body, "_MAX_KEPT_BYTES", 1000)
    bodies = RequestBodies(LIMITS)

    for number in range(5):
        one = job(chat(), name=str(number))
        bodies.keep(one, *await bodies.read(one))
    assert list(bodies._kept) == ["2", "3", "4"]

    large = job(chat("x" * 2000), name="large")
    bodies.keep(large, *await bodies.read(large))
    assert (list(bodies._kept), bodies._bytes) == ([], 0)


@pytest.mark.parametrize("size", [10, 600 * 1024])
async def test_a_bad_body_is_refused_whatever_its_size(size: int) -> None:
    with pytest.raises(ApiError):
        await RequestBodies(LIMITS).read(job(chat("x" * size, n="many")))
