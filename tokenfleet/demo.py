"""`tokenfleet demo`: the whole fleet in this process, asked over HTTP, each stage's traffic shown.

What is printed was read off the records on the bus, not told by the stages.
"""

import asyncio
import base64
import itertools
import json
import mimetypes
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import typer

from runtime import logs
from runtime.bus import Outgoing
from runtime.settings import (
    EngineSettings,
    FleetSettings,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)
from runtime.stage import Job
from runtime.storage import BlobStore
from schemas.ec import descriptors
from schemas.envelope import GENERATED, PROMPTS, BlobRef, Envelope, Hop
from schemas.routes import Stop
from schemas.topics import Topics
from tokenfleet.demo_model import DEMO_NAME, demo_model, examples
from tokenfleet.event_loop import run_loop
from tokenfleet.extras import require_extras
from tokenfleet.fleet import Fleet
from tokenfleet.options import environment
from tokenfleet.plan import WHOLE_FLEET, Plan
from tokenfleet.shared import open_shared
from tokenfleet.tap import Tap

_TIMEOUT_S = 60.0
_COLUMNS = "  {:<10}{:<42}{:<52}{:>8}{:>10}{:>10}"

_LEGEND = """\
Each question goes through its stages as records on the bus. bus: size of the record a stage takes;
store: what it puts into the blob store instead of into a record. A picture is so many placeholder
tokens at a position of the prompt, #hash; one that was encoded before is not encoded again.
"""


@dataclass(frozen=True, slots=True)
class Question:
    pictures: tuple[str, ...]
    """Files of `examples/`."""
    text: str


QUESTIONS = (
    Question(("shapes.png",), "Describe this image."),
    Question(("four-shapes.jpg",), "How many shapes are there?"),
    Question(("four-shapes.jpg",), "What is at the bottom left?"),
    Question(("pair-first.png", "pair-second.png"), "Which picture has more shapes?"),
    Question(("clouds.jpg",), "Describe this image."),
    Question((), "Hello, who are you?"),
)


def run_demo() -> int:
    """Exit code: 0 when every question was answered."""
    require_extras("demo", WHOLE_FLEET, takes_media=True)
    logs.configure("warning", "console")
    return run_loop(_demo(demo_plan()))


def demo_plan() -> Plan:
    """The embedded default: memory bus, memory store, the model that ships with the project."""
    return Plan(
        roles=WHOLE_FLEET,
        fleet=FleetSettings(),
        model=ModelSettings(model=str(demo_model()), served_model_name=(DEMO_NAME,)),
        render=RenderSettings(),
        engine=EngineSettings(),
        ingress=IngressSettings(port=0),
        health=HealthSettings(),
    )


async def _demo(plan: Plan) -> int:
    shared = open_shared(plan, environment(), wrap_bus=Tap)
    assert isinstance(shared.bus, Tap), "wrapped above"
    tap = shared.bus
    started = time.perf_counter()
    async with Fleet(shared) as fleet:
        typer.echo(f"The fleet is up after {time.perf_counter() - started:.1f} s: {fleet.url}")
        typer.echo(_LEGEND)
        typer.echo(_COLUMNS.format("stage", "gets", "gives", "bus", "store", "time"))
        failed = 0
        for question in QUESTIONS:
            failed += not await _ask(fleet, tap, question)
    return 1 if failed else 0


async def _ask(fleet: Fleet, tap: Tap, question: Question) -> bool:
    """Ask one question and print its way; whether it was answered."""
    typer.echo(f"\n{', '.join(question.pictures) or '(no picture)'} · {question.text}")
    tap.sent.clear()
    began = time.perf_counter()
    status, answer = await asyncio.to_thread(_post, fleet.url, _body(question))
    took_ms = (time.perf_counter() - began) * 1000
    (records,) = tap.sent.values()
    for line in await _way(records, fleet.shared.topics, fleet.shared.blobs):
        typer.echo(line)
    if status != 200:
        typer.echo(f"  failed with {status}: {answer}", err=True)
        return False
    typer.echo(f"  ▶ {answer['choices'][0]['message']['content'].strip()}   ({took_ms:.0f} ms)")
    return True


def _body(question: Question) -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": _data_url(examples() / name)}}
        for name in question.pictures
    ]
    content = [*parts, {"type": "text", "text": question.text}]
    messages = [{"role": "user", "content": content}]
    return {"model": DEMO_NAME, "messages": messages, "temperature": 0, "max_tokens": 96}


def _data_url(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def _way(records: list[Outgoing], topics: Topics, blobs: BlobStore) -> list[str]:
    """A line for each stage: its own record, and the one it led to."""
    hops = _hops(records[-1])
    lines = []
    for record, following in itertools.pairwise(records):
        stop = next((s for s in hops if record.topic == topics.of(s)), None)
        if stop is None:
            continue
        before = Job(Envelope.decode(record.value or b""), blobs)
        is_last = following.topic == topics.replies
        after = None if is_last else Job(Envelope.decode(following.value or b""), blobs)
        gets, gives = await _told(stop, before, after)
        hop, stored = hops[stop], _newly_stored(before, after)
        columns = (_size(hop.bytes_in), _size(stored), f"{hop.work_ms:.1f} ms")
        lines.append(_COLUMNS.format(stop, gets, gives, *columns))
    return lines


def _newly_stored(before: Job, after: Job | None) -> int:
    """Bytes that a stage put into the store instead of into its record."""
    if after is None:
        return 0
    known = before.envelope.parts.values()
    parts = after.envelope.parts.values()
    return sum(part.size for part in parts if isinstance(part, BlobRef) and part not in known)


def _hops(reply: Outgoing) -> dict[Stop, Hop]:
    trace = [Hop.model_validate(hop) for hop in msgpack.unpackb(reply.value or b"")["trace"]]
    return {hop.stop: hop for hop in trace}


async def _told(stop: Stop, before: Job, after: Job | None) -> tuple[str, str]:
    """What a stage got and what it gave, in words."""
    payloads = _payloads(before.envelope)
    if stop is Stop.RENDER and after is not None:
        (prompt,) = await after.read_msgpack(PROMPTS)
        pictures = _count(len(after.envelope.items), "picture") if after.envelope.items else "text"
        places = "; ".join(
            f"{i.length} at {i.offset} #{i.mm_hash[:8]}" for i in after.envelope.items
        )
        return f"a chat with {pictures}", f"{len(prompt['token_ids'])} tokens" + (
            f", pictures: {places}" if places else ""
        )
    if stop is Stop.ENCODE and after is not None:
        entries = descriptors(after.envelope.ec_transfer_params).values()
        shapes = ", ".join("x".join(map(str, entry["shape"])) for entry in entries)
        return payloads, f"embeddings in the encoder cache: {shapes}"
    if stop is Stop.PREFILL and after is not None:
        (generated,) = await after.read_msgpack(GENERATED)
        num_tokens = generated["usage"]["completion_tokens"]
        return payloads or "tokens", f"{num_tokens} tokens"
    return "tokens", "an OpenAI chat completion"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _payloads(envelope: Envelope) -> str:
    told = []
    for kind, name in (("kwargs:", "kwargs_data"), ("metadata:", "mm_metadata")):
        sizes = [_size_of(part) for key, part in envelope.parts.items() if key.startswith(kind)]
        if sizes:
            told.append(f"{len(sizes)} {name}, {_size(sum(sizes))}")
    if told and envelope.stop is Stop.PREFILL:
        told.append("ec_transfer_params")
    return " + ".join(told)


def _size_of(part: bytes | BlobRef) -> int:
    return part.size if isinstance(part, BlobRef) else len(part)


def _size(num_bytes: int) -> str:
    return f"{num_bytes} B" if num_bytes < 10_000 else f"{num_bytes / 1024:.1f} KB"
