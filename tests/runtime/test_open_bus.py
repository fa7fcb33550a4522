"""Opening a bus by URL, and the translation of aiokafka's errors."""

import inspect
from importlib import import_module

import pytest
from aiokafka import errors

from runtime.bus import Outgoing, open_bus
from runtime.bus.kafka import KafkaBus
from runtime.bus.kafka_errors import translate, translated
from runtime.bus.memory import MemoryBus
from runtime.errors import BusError, OwnershipLost, SettingsError
from runtime.kafka_local import free_port
from runtime.settings import FleetSettings

AIOKAFKAS = [
    kind
    for _, kind in inspect.getmembers(import_module("aiokafka.errors"), inspect.isclass)
    # The root of the numbered ones cannot be raised itself.
    if issubclass(kind, Exception) and kind is not errors.BrokerResponseError
]
LOST = {
    errors.CommitFailedError,
    errors.IllegalStateError,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.RebalanceInProgressError,
}


def make(kind: type[Exception]) -> Exception:
    try:
        return kind()
    except TypeError:
        return kind("argument")


@pytest.mark.parametrize("kind", AIOKAFKAS, ids=lambda kind: kind.__name__)
def test_every_error_of_aiokafkas_becomes_one_of_ours(kind):
    with pytest.raises(BusError) as caught, translated():
        raise make(kind)

    assert isinstance(caught.value, OwnershipLost) == (kind in LOST)
    assert caught.value.retriable or not getattr(kind, "retriable", False)
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize(
    ("kind", "is_retriable"),
    [
        (errors.MessageSizeTooLargeError, False),
        (errors.TopicAuthorizationFailedError, False),
        (errors.KafkaConnectionError, True),
        (errors.KafkaTimeoutError, True),
        (errors.NotLeaderForPartitionError, True),
    ],
)
def test_only_what_may_pass_is_retriable(kind, is_retriable):
    assert translate(make(kind)).retriable == is_retriable


def test_urls_name_a_bus():
    assert isinstance(open_bus("memory://", FleetSettings()), MemoryBus)
    assert isinstance(open_bus("kafka://a:9092,b:9093", FleetSettings()), KafkaBus)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory://host",
        "kafka://",
        "kafka://host",
        "kafka://host:port",
        "kafka://:9092",
        "kafka://a:1,",
        "kafka://a:99999",
        "kafka://a:9092/topic",
        "redis://host:1",
    ],
)
def test_a_bad_url_is_one_readable_line(url: str):
    with pytest.raises(SettingsError) as caught:
        open_bus(url, FleetSettings())

    assert repr(url) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_broker_that_does_not_answer_is_one_readable_line(monkeypatch):
    monkeypatch.setattr("runtime.bus.kafka._CONNECT_S", 0.3)
    address = f"127.0.0.1:{free_port()}"
    bus = open_bus(f"kafka://{address}", FleetSettings())

    with pytest.raises(SettingsError) as caught:
        await bus.start()

    assert str(caught.value) == f"--bus kafka://{address}: no broker answers there"
    await bus.stop()


async def test_a_stopped_bus_sends_nothing(topics):
    for url in ("memory://", "kafka://127.0.0.1:1"):
        bus = open_bus(url, FleetSettings())
        await bus.stop()
        with pytest.raises(BusError):
            await bus.send(make_record(topics.requests))


def make_record(topic: str):
    return Outgoing(topic, b"k", b"v")
