"""Small stages, jobs and a media adapter that needs no pictures."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pybase64

from runtime.delivery import failure
from runtime.settings import ModelSettings, RenderSettings
from runtime.stage import Job
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import REQUEST, Base64Of, Caller, Envelope, Outcome
from schemas.errors import ApiError
from schemas.routes import URL_OF_KIND, Kind
from workers.render.media import MediaItem, MediaPart, Span
from workers.render.stage import RenderStage

DATA = Path(__file__).parent.parent / "data"
KIND_OF_URL = {url: kind for kind, url in URL_OF_KIND.items()}


class FakeMedia:
    """Qwen's way to write media; an item grows to as many tokens as its URL has characters."""

    literals = ("<|image_pad|>", "<|video_pad|>")

    def __init__(self, image: int = 2012, video: int = 2013, limit: int = 4) -> None:
        self._tokens = {"image": image, "video": video}
        self.limits: Mapping[str, int] = {"image": limit, "video": 1, "audio": 0}
        self.max_limits: Mapping[str, int] = {"image": 999, "video": 999, "audio": 0}
        self.loaded: list[MediaPart] = []

    def placeholder(self, modality: str, index: int) -> str:
        return f"<|vision_start|><|{modality}_pad|><|vision_end|>"

    def locate(self, prompt_ids: Sequence[int], parts: Sequence[MediaPart]) -> list[Span]:
        found = {m: _positions(prompt_ids, t) for m, t in self._tokens.items()}
        try:
            return [(next(found[part.modality]), 1) for part in parts]
        except StopIteration:
            raise ApiError("a medium has no place") from None

    def settle(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        return ids, ranges

    async def load(
        self, parts: Sequence[MediaPart], *, want_tensors: bool, **options: Any
    ) -> list[MediaItem]:
        self.loaded += parts
        return [self._item(part, want_tensors) for part in parts]

    def _item(self, part: MediaPart, want_tensors: bool) -> MediaItem:
        token = self._tokens[part.modality]
        return MediaItem(
            modality=part.modality,
            mm_hash=f"hash-of-{part.source}",
            replacement=(token,) * len(part.source),
            embeds=None,
            kwargs=f"tensors of {part.source}".encode() if want_tensors else None,
            metadata=b"metadata" if want_tensors else None,
        )


def _positions(ids: Sequence[int], token: int) -> Iterator[int]:
    return (position for position, found in enumerate(ids) if found == token)


def read_flags(flags: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the model and of render, as the command would read them."""
    model: dict[str, Any] = {}
    render: dict[str, Any] = {}
    for text in re.findall(r"--\S+(?: (?!--)\S+)?", " ".join(flags)):
        flag, _, value = text.removeprefix("--").partition(" ")
        name = flag.replace("-", "_")
        group = model if name in ModelSettings.model_fields else render
        group[name] = _value(value)
    return model, render


def _value(text: str) -> Any:
    try:
        return json.loads(text or "true")
    except ValueError:
        return text


async def start_stage(
    model: str, *flags: str, media: FakeMedia | None = None, **settings: Any
) -> RenderStage:
    of_model, of_render = read_flags(flags)
    for name, value in settings.items():
        (of_model if name in ModelSettings.model_fields else of_render)[name] = value
    stage = RenderStage(
        ModelSettings(model=str(DATA / "models" / model), served_model_name=(model,), **of_model),
        RenderSettings(**of_render),
        media,
    )
    await stage.start()
    return stage


def make_job(kind: Kind, body: Any, request_id: str | None = None) -> Job:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    envelope = Envelope(
        id="internal",
        kind=kind,
        created_ms=0,
        deadline_ms=2**53,
        caller=Caller(request_id=request_id),
        parts={REQUEST: raw},
    )
    return Job(envelope, MemoryBlobs())


async def answer(
    stage: RenderStage, url: str, body: Any, *, request_id: str | None = None
) -> tuple[int, Any]:
    """Status and body, as HTTP would bring them."""
    job = make_job(KIND_OF_URL[url], body, request_id)
    try:
        await stage.process(job)
        outcome = job.envelope.outcome
        assert outcome is not None
    except ApiError as error:
        outcome = failure(error)
    return outcome.status, json.loads(await body_of(outcome, job))


async def body_of(outcome: Outcome, job: Job) -> bytes:
    pieces = [
        pybase64.b64encode(await job.blobs.get(s.blob)) if isinstance(s, Base64Of) else s
        for s in outcome.segments
    ]
    return b"".join(pieces)


async def chat(stage: RenderStage, messages: list[dict[str, Any]], **fields: Any) -> Any:
    """The answer of a chat render that must succeed."""
    body = {"messages": messages, **fields}
    status, rendered = await answer(stage, URL_OF_KIND[Kind.CHAT_RENDER], body)
    assert status == 200, rendered
    return rendered


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [_part(part) for part in content]}


def _part(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}
