"""What the bus costs: one text chat through the fleet, against its stages called in a row.

All in one process and one run, in turns, so that a busy machine is equally busy for all. The model
answers with one token, so its time is small and the same everywhere. Run it as
`python bench/hops.py`; `KAFKA_BOOTSTRAP_SERVERS` names a broker, else one is started.
"""

import argparse
import asyncio
import os
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import msgpack
import orjson

from runtime import logs
from runtime.bus import Bus, Outgoing, TopicPartition
from runtime.kafka_local import LocalKafka
from runtime.settings import (
    EngineSettings,
    FleetSettings,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)
from runtime.stage import Job, Stage
from schemas.envelope import REQUEST, Caller, Envelope, Hop, Outcome, now_ms
from schemas.routes import TEXT, Kind, Stop
from tokenfleet.demo_model import demo_model
from tokenfleet.event_loop import run_loop
from tokenfleet.fleet import Fleet
from tokenfleet.plan import WHOLE_FLEET, Plan, checked
from tokenfleet.roles import build_other_stages, build_render
from tokenfleet.shared import Shared, open_shared
from tokenfleet.tap import Tap

Ask = Callable[[], Awaitable[Outcome]]
"""Answers one request, alike each time but for its id."""

TIMEOUT_MS = 60_000
TARGETS_MS = {"memory bus": 3.0, "Kafka": 25.0}
BODY = orjson.dumps(
    {
        "messages": [{"role": "user", "content": "Hello, who are you?"}],
        "max_tokens": 1,
        "temperature": 0,
    }
)


def plan_of(model: Path, folder: Path, **fleet: object) -> Plan:
    return checked(
        Plan(
            roles=WHOLE_FLEET,
            fleet=FleetSettings.model_validate(fleet),
            model=ModelSettings(model=str(model)),
            render=RenderSettings(),
            engine=EngineSettings(ec=f"directory://{folder}/ec", engine_threads=1),
            ingress=IngressSettings(port=0),
            health=HealthSettings(),
        )
    )


# --- the three ways


@asynccontextmanager
async def in_a_row(plan: Plan) -> AsyncIterator[Ask]:
    """The stages of a text request as plain calls: no bus, no loop, no envelope on any wire."""
    shared = open_shared(plan, {})
    parts = [build_render(shared).stage, *build_other_stages(shared)]
    stages = {stage.stop: stage for stage in parts}
    async with AsyncExitStack() as stack:
        for stage in stages.values():
            stack.push_async_callback(stage.close)
            await stage.start()
        yield lambda: _through(stages, shared)


async def _through(stages: dict[Stop, Stage], shared: Shared) -> Outcome:
    now = int(now_ms())
    envelope = Envelope(
        id=uuid.uuid4().hex,
        kind=Kind.CHAT,
        route=list(TEXT[Kind.CHAT]),
        created_ms=now,
        deadline_ms=now + TIMEOUT_MS,
        parts={REQUEST: BODY},
    )
    job = Job(envelope, shared.blobs)
    while envelope.stop is not None and envelope.stop is not Stop.REPLY:
        await stages[envelope.stop].process(job)
        envelope.at += 1
    assert envelope.outcome is not None
    return envelope.outcome


@asynccontextmanager
async def in_a_fleet(plan: Plan) -> AsyncIterator[tuple[Ask, Tap]]:
    """From the ingress's gateway through every role and back; HTTP is left out."""
    shared = open_shared(plan, {}, wrap_bus=Tap)
    assert isinstance(shared.bus, Tap)
    async with Fleet(shared) as fleet:
        front = fleet.front
        assert front is not None

        async def ask() -> Outcome:
            deadline_ms = int(now_ms()) + TIMEOUT_MS
            return await front.gateway.submit(Kind.CHAT, BODY, Caller(), deadline_ms)

        yield ask, shared.bus


# --- measuring


@dataclass
class Series:
    """Milliseconds per request, as each client saw it."""

    alone: list[float] = field(default_factory=list)
    crowded: list[float] = field(default_factory=list)
    crowded_s: float = 0.0
    """Wall time of all of `crowded`."""
    cpu_s: float = 0.0
    """Processor time of this process meanwhile, all its threads together."""

    @property
    def each_ms(self) -> float:
        """Of the wall time of many at once, one request's part."""
        return self.crowded_s * 1000 / len(self.crowded)

    @property
    def cpu_ms(self) -> float:
        """The same of processor time."""
        return self.cpu_s * 1000 / len(self.crowded)


async def measure(ways: dict[str, Ask], options: argparse.Namespace) -> dict[str, Series]:
    """In short turns: what else the machine does hits all ways alike."""
    series = {name: Series() for name in ways}
    for ask in ways.values():
        await asked(ask, count=20, clients=4)  # warm
    for _ in range(options.requests):
        for name, ask in ways.items():
            series[name].alone += await asked(ask, count=2, clients=1)
    for _ in range(options.requests // 4):
        for name, ask in ways.items():
            await crowd(ask, options.clients, series[name])
    return series


async def crowd(ask: Ask, clients: int, series: Series) -> None:
    began, cpu_began = time.perf_counter(), time.process_time()
    series.crowded += await asked(ask, count=4 * clients, clients=clients)
    series.crowded_s += time.perf_counter() - began
    series.cpu_s += time.process_time() - cpu_began


async def asked(ask: Ask, *, count: int, clients: int) -> list[float]:
    """`clients` that each ask one after another, `count` requests in all."""
    left = iter(range(count))

    async def client() -> list[float]:
        return [await _timed(ask) for _ in left]

    return [
        ms for times in await asyncio.gather(*(client() for _ in range(clients))) for ms in times
    ]


async def _timed(ask: Ask) -> float:
    started = time.perf_counter()
    outcome = await ask()
    took_ms = (time.perf_counter() - started) * 1000
    assert outcome.status == 200, outcome
    return took_ms


async def bare_hops(bus: Bus, topic: str, count: int) -> list[float]:
    """Milliseconds from sending a small record to having polled it, nothing else going on."""
    reader = bus.reader(TopicPartition(topic, 0))
    await reader.start()
    times = []
    for number in range(count):
        started = time.perf_counter()
        await bus.send(Outgoing(topic, b"k", str(number).encode(), partition=0))
        while not await reader.poll(max_records=10, timeout_s=1.0):
            pass
        times.append((time.perf_counter() - started) * 1000)
    await reader.stop()
    return times


def waits_of(tap: Tap, replies: str) -> dict[Stop, list[float]]:
    """From being sent to being taken up, per stop, as the last requests' traces tell."""
    waits: dict[Stop, list[float]] = {}
    for records in tap.sent.values():
        if records[-1].topic == replies:
            for hop in map(Hop.model_validate, msgpack.unpackb(records[-1].value)["trace"]):
                waits.setdefault(hop.stop, []).append(hop.queue_ms)
    return waits


# --- telling


def report(series: dict[str, Series], clients: int) -> bool:
    """Print the table; whether what each bus adds to a request is within its target."""
    base = series["stages in a row"]
    print(f"\nOne text chat of 1 token; ms, median (p90). Each: wall time of {clients} clients at")
    print("once by requests, then CPU of this process likewise. Over: than the stages in a row.\n")
    titles = ("alone", "over", f"{clients} clients", "each", "over", "CPU", "over", "target")
    print(_line("", titles))
    is_met = True
    for name, times in series.items():
        target = TARGETS_MS.get(name)
        over = (
            median(times.alone) - median(base.alone),
            times.each_ms - base.each_ms,
            times.cpu_ms - base.cpu_ms,
        )
        is_met &= target is None or max(over[:2]) <= target
        cells = (
            *(_pair(times.alone), f"{over[0]:+.2f}", _pair(times.crowded)),
            *(f"{times.each_ms:.2f}", f"{over[1]:+.2f}", f"{times.cpu_ms:.2f}", f"{over[2]:+.2f}"),
            f"+{target:g}" if target else "",
        )
        print(_line(name, cells))
    return is_met


def _line(name: str, cells: Sequence[str]) -> str:
    widths = (16, 8, 19, 8, 8, 8, 8, 8)
    return f"{name:16}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))


def _pair(times: Sequence[float]) -> str:
    return f"{median(times):.2f} ({quantiles(times, n=10)[-1]:.2f})"


def report_hops(name: str, hops: Sequence[float], waits: dict[Stop, list[float]]) -> None:
    stops = ", ".join(f"to {stop} {median(times):.2f}" for stop, times in waits.items())
    print(f"{name:12} a bare hop {_pair(hops)}; on the way, alone: {stops}")


async def bench(options: argparse.Namespace, servers: str) -> bool:
    folder = Path(options.folder)
    memory = plan_of(options.model, folder / "memory")
    kafka = plan_of(
        options.model,
        folder / "kafka",
        bus=f"kafka://{servers}",
        store=f"file://{folder}/store",
        topic_prefix=f"bench-{uuid.uuid4().hex[:8]}.",
    )
    async with AsyncExitStack() as stack:
        ways: dict[str, Ask] = {
            "stages in a row": await stack.enter_async_context(in_a_row(memory))
        }
        taps: dict[str, Tap] = {}
        for name, plan in {"memory bus": memory, "Kafka": kafka}.items():
            ways[name], taps[name] = await stack.enter_async_context(in_a_fleet(plan))
        series = await measure(ways, options)
        is_met = report(series, options.clients)
        print()
        for name, plan in {"memory bus": memory, "Kafka": kafka}.items():
            taps[name].sent.clear()
            await asked(ways[name], count=options.requests, clients=1)
            prefix = plan.fleet.topic_prefix
            waits = waits_of(taps[name], f"{prefix}replies")
            hops = await bare_hops(taps[name], f"{prefix}control", options.requests)
            report_hops(name, hops, waits)
        return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--requests", type=int, default=100, help="of one client, in each way")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    logs.configure("warning", "console")
    with ExitStack() as stack:
        options.folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        servers = servers or stack.enter_context(LocalKafka()).servers
        return 0 if run_loop(bench(options, servers)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
