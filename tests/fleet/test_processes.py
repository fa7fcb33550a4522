"""Each role in a process of its own, on a real broker."""

import asyncio
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord

from schemas.topics import MAX_RECORD_BYTES, Topics
from tests.fleet.asking import CHAT, NAME, agreed, chat, mixed, picture
from tests.fleet.embedded import TIMEOUT_S, Embedded
from tests.fleet.processes import Processes, environment, settings_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(480)]

SEED_EXAMPLE = Path(__file__).parents[1] / "data" / "seed_example.py"


@pytest.fixture(scope="module")
def processes(kafka_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The six roles, ready; the front is two processes, each a replica of its own."""
    folder = tmp_path_factory.mktemp("processes")
    prefix = f"processes-{uuid.uuid4().hex[:8]}."
    with Processes(folder, settings_of(kafka_servers, prefix, folder)) as fleet:
        for stage in ("render", "encode", "prefill", "derender"):
            fleet.start(stage, "worker", stage)
        fleet.start("coordinator", "coordinator")
        fleet.start("ingress", "ingress", "--api-server-count", "2", probe="--port")
        fleet.wait_until_ready()
        yield fleet


@pytest.fixture
async def client(processes: Processes) -> AsyncIterator[httpx.AsyncClient]:
    url = processes.running["ingress"].url
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        yield client


async def answers(client: httpx.AsyncClient, bodies: list[dict]) -> list[dict]:
    """What all of them are answered, asked at the same time."""
    responses = await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))
    return [agreed(response.raise_for_status().json()) for response in responses]


async def records_on(servers: str, topics: Topics) -> list[ConsumerRecord]:
    """Everything that is on the fleet's topics now."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.subscribe(topics.all())
        records: list[ConsumerRecord] = []
        await consumer.getmany(timeout_ms=0)
        ends = await consumer.end_offsets(consumer.assignment())
        while any([await consumer.position(p) < end for p, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


def size_of(record: ConsumerRecord) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


async def test_fifty_mixed_requests_at_once_are_answered_as_on_the_memory_bus(
    client: httpx.AsyncClient, embedded: Embedded
):
    bodies = mixed(50)

    expected = await answers(embedded.client, bodies)

    assert await answers(client, bodies) == expected
    assert len({answer["choices"][0]["message"]["content"] for answer in expected}) > 25


async def test_no_record_is_large_even_for_a_large_picture(
    client: httpx.AsyncClient, processes: Processes, kafka_servers: str
):
    prefix = processes.settings["--topic-prefix"]
    large = picture(7, 2048, 2048)

    (answer,) = await answers(client, [chat("How large?", [large])])

    assert answer["usage"]["prompt_tokens"] > 1000
    records = await records_on(kafka_servers, Topics(prefix))
    assert {record.topic for record in records} >= {
        prefix + name
        for name in ("admissions", "render", "encode", "prefill", "derender", "replies")
    }
    assert max(map(size_of, records)) <= MAX_RECORD_BYTES


def test_the_example_of_the_renderer_s_documentation_runs_as_it_is(
    processes: Processes, tmp_path: Path
):
    """Only the picture, the ports and the model's name are filled in."""
    settings = processes.settings
    with Processes(tmp_path, settings) as more:
        encode = more.start(
            "encode-ingress", "ingress", "--generate-stage", "encode", probe="--port"
        )
        prefill = more.start(
            "prefill-ingress", "ingress", "--generate-stage", "prefill", probe="--port"
        )
        more.settings = {"--served-model-name": NAME}
        render = more.start(
            "render-server", "launch", "render", "--api-server-count", "1", probe="--port"
        )
        more.wait_until_ready()
        script = tmp_path / "example.py"
        script.write_text(filled_in(render.url, encode.url, prefill.url))

        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
        )

        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"\[\d+(, \d+){0,63}\]\n", done.stdout)
        assert set(more.terminate().values()) == {0}


def filled_in(render: str, encode: str, prefill: str) -> str:
    text = SEED_EXAMPLE.read_text()
    for old, new in {
        "<data-url>": picture(1),
        "Qwen/Qwen3-VL-2B-Instruct": NAME,
        "http://localhost:8100": render,
        "http://localhost:8200": encode,
        "http://localhost:8300": prefill,
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_every_process_ends_with_zero_when_told_to(processes: Processes):
    """The last one here: after it the fleet is gone."""
    assert processes.terminate() == dict.fromkeys(processes.running, 0)
