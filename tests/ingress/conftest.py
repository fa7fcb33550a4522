from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from ingress.app import create_app
from ingress.gateway import Gateway
from runtime.bus.memory import MemoryBus
from runtime.model_dir import ModelDirectory
from runtime.settings import IngressSettings
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import Outcome
from schemas.limits import ModelLimits
from schemas.topics import Topics

from .fakes import FakeFleet

MODEL = ModelDirectory(
    name="./tiny",
    path=Path("/nowhere/tiny"),
    config={},
    tokenizer_config={},
    generation_config={},
    max_model_len=4096,
    vocab_size=100,
    served_names=("tiny", "alias"),
)
LIMITS = ModelLimits(max_model_len=4096, vocab_size=100, served_names=("tiny", "alias"))


@pytest.fixture
async def fleet() -> AsyncIterator[FakeFleet]:
    bus, blobs, topics = MemoryBus(num_partitions=3), MemoryBlobs(), Topics()
    fleet = FakeFleet(
        bus, blobs, topics, lambda envelope: Outcome(status=200, segments=[b'{"ok":true}'])
    )
    await fleet.start()
    yield fleet
    await fleet.stop()


@pytest.fixture
async def gateway(fleet: FakeFleet) -> AsyncIterator[Gateway]:
    gateway = Gateway(fleet.bus, fleet.blobs, fleet.topics, max_pending=4)
    await gateway.start()
    yield gateway
    await gateway.close()


@pytest.fixture
def make_app(gateway: Gateway) -> Callable[..., FastAPI]:
    def make(settings: IngressSettings | None = None, **options: object) -> FastAPI:
        return create_app(
            settings or IngressSettings(),
            MODEL,
            LIMITS,
            gateway,
            registry=CollectorRegistry(),
            **options,  # type: ignore[arg-type]
        )

    return make


@pytest.fixture
async def make_client(
    make_app: Callable[..., FastAPI],
) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    clients: list[httpx.AsyncClient] = []

    def make(settings: IngressSettings | None = None, **options: object) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(make_app(settings, **options), raise_app_exceptions=False)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://test"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()
