"""A whole fleet inside a test, everything it sends kept."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from runtime.bus import Outgoing
from runtime.settings import (
    EngineSettings,
    FleetSettings,
    HealthSettings,
    IngressSettings,
    ModelSettings,
    RenderSettings,
)
from schemas.envelope import Envelope
from schemas.routes import Stop
from tests.fleet.asking import CHAT, MODEL, NAME
from tokenfleet.fleet import Fleet
from tokenfleet.plan import WHOLE_FLEET, Plan, checked
from tokenfleet.shared import open_shared
from tokenfleet.tap import Tap

TIMEOUT_S = 60.0


def whole_fleet(
    ec: Path, *, ingress: dict | None = None, is_scale_out: bool = True, **fleet: object
) -> Plan:
    """The plan of a fleet in this process; `fleet` and `ingress` are settings."""
    return checked(
        Plan(
            roles=WHOLE_FLEET,
            fleet=FleetSettings.model_validate(fleet),
            model=ModelSettings(model=str(MODEL), dtype="float32", served_model_name=(NAME,)),
            render=RenderSettings(render_threads=1),
            engine=EngineSettings(ec=f"directory://{ec}", engine_threads=1),
            ingress=IngressSettings.model_validate({"port": 0, **(ingress or {})}),
            health=HealthSettings(),
            is_scale_out=is_scale_out,
        )
    )


class Watched(Tap):
    """A tap that can also do something just before a record goes out."""

    before_send: Callable[[Outgoing], None] = staticmethod(lambda record: None)

    async def send(self, record: Outgoing) -> tuple[int, int]:
        self.before_send(record)
        return await super().send(record)


@dataclass
class Embedded:
    """A running fleet and a client of it."""

    fleet: Fleet
    bus: Watched
    client: httpx.AsyncClient
    ec: Path

    async def ask(self, path: str, body: object, *, status: int = 200) -> dict:
        response = await self.client.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    async def say(self, body: dict) -> str:
        """The text that answers a chat."""
        return (await self.ask(CHAT, body))["choices"][0]["message"]["content"]

    def sent_to(self, stop: Stop) -> list[Envelope]:
        return [Envelope.decode(record.value) for record in self.records_for(stop)]

    def records_for(self, stop: Stop) -> list[Outgoing]:
        topic = self.fleet.shared.topics.of(stop)
        return [r for records in self.bus.sent.values() for r in records if r.topic == topic]

    async def blob(self, name: str) -> bytes | None:
        return await self.fleet.shared.blobs.get_named(name)

    def entry(self, mm_hash: str) -> Path:
        """The file in the encoder cache."""
        (path,) = self.ec.glob(f"*/{mm_hash}/*.safetensors")
        return path


class Running:
    """`async with Running(plan, ec) as embedded:`"""

    def __init__(self, plan: Plan, ec: Path) -> None:
        shared = open_shared(plan, {}, wrap_bus=Watched)
        self._fleet = Fleet(shared)
        self._ec = ec
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Embedded:
        await self._fleet.__aenter__()
        self._client = httpx.AsyncClient(base_url=self._fleet.url, timeout=TIMEOUT_S)
        bus = self._fleet.shared.bus
        assert isinstance(bus, Watched)
        return Embedded(self._fleet, bus, self._client, self._ec)

    async def __aexit__(self, *details: object) -> None:
        assert self._client is not None
        await self._client.aclose()
        await self._fleet.__aexit__(None, None, None)
