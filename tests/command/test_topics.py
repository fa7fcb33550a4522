"""`topics create`: what is missing is made, what is there is compared."""

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from runtime.bus import TopicInfo
from runtime.bus.limits import max_bytes_of
from runtime.settings import FleetSettings
from schemas.topics import Topics
from tokenfleet import __main__
from tokenfleet.topics import compared, create_topics

TOPICS = Topics("t.")


def fine(topic: str) -> TopicInfo:
    return TopicInfo(8, max_bytes_of(topic, TOPICS), False)


def test_topics_as_they_should_be_are_not_mentioned():
    report = compared(["t.render"], {t: fine(t) for t in TOPICS.all()}, TOPICS, num_partitions=8)

    assert (report.created, report.other_counts, report.too_small) == (["t.render"], [], [])


def test_each_topic_that_differs_is_named_with_both_figures():
    found = {topic: fine(topic) for topic in TOPICS.all()}
    found["t.encode"] = TopicInfo(3, max_bytes_of("t.encode", TOPICS), False)
    found[TOPICS.requests] = TopicInfo(8, 1_048_588, False)
    found["t.control"] = TopicInfo(9, 10**9, False)
    found["t.replies"] = None

    report = compared([], found, TOPICS, num_partitions=8)

    assert sorted(report.other_counts) == [
        "t.control has 9 partitions, not 8",
        "t.encode has 3 partitions, not 8",
    ]
    (line,) = report.too_small
    assert line.startswith("t.requests takes records of 1048588 bytes and needs 84")


def topics_create(*arguments: str, monkeypatch, capsys) -> tuple[int, list[str], list[str]]:
    monkeypatch.setattr("sys.argv", ["tokenfleet", "topics", "create", *arguments])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out.splitlines(), captured.err.splitlines()


def test_without_a_broker_it_is_refused_in_one_line(monkeypatch, capsys):
    for arguments in ((), ("--bus", "memory://")):
        code, out, err = topics_create(*arguments, monkeypatch=monkeypatch, capsys=capsys)

        assert (code, out) == (2, [])
        (line,) = err
        assert line.startswith("tokenfleet: topics create needs --bus kafka://host:port")


@pytest.mark.kafka
def test_a_second_call_reports_other_counts_and_fails_where_they_were_asked_for(
    kafka_servers, topic_prefix, monkeypatch, capsys
):
    fleet = ("--bus", f"kafka://{kafka_servers}", "--topic-prefix", topic_prefix)

    def create(*arguments: str) -> tuple[int, list[str], list[str]]:
        return topics_create(*fleet, *arguments, monkeypatch=monkeypatch, capsys=capsys)

    names = Topics(topic_prefix).all()
    assert create("--num-partitions", "2") == (0, [f"created {name}" for name in names], [])
    assert create("--num-partitions", "2") == (0, [], [])

    reports = [f"tokenfleet: {name} has 2 partitions, not 8" for name in names]
    assert create() == (0, [], reports)
    assert create("--num-partitions", "8") == (1, [], reports)


@pytest.mark.kafka
async def test_a_topic_that_takes_too_small_records_is_reported(kafka_servers, topic_prefix):
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_servers)
    await admin.start()
    small = NewTopic(f"{topic_prefix}render", 8, 1, topic_configs={"max.message.bytes": "1000"})
    await admin.create_topics([small])
    await admin.close()
    settings = FleetSettings(bus=f"kafka://{kafka_servers}", topic_prefix=topic_prefix)

    report = await asyncio.to_thread(create_topics, settings)

    assert report.other_counts == []
    (line,) = report.too_small
    assert line.startswith(f"{topic_prefix}render takes records of 1000 bytes and needs ")
