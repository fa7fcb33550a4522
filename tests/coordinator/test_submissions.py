"""What is read from a record that anybody may have written: pure, and never an exception."""

import dataclasses
import json
import re

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.admissions import MAX_DEADLINE_S, read_admission
from coordinator.submissions import (
    ALWAYS_ECHOED,
    MAX_ECHOED_BYTES,
    MAX_KEY_BYTES,
    SubmissionRules,
    read_submission,
)
from runtime.bus import Record
from schemas.envelope import REQUEST, Caller, Envelope, ReplyTo
from schemas.errors import DecodeError
from schemas.routes import Kind
from schemas.topics import MAX_RECORD_BYTES, Topics

TOPICS = Topics()
RULES = SubmissionRules("cluster", TOPICS, timeout_s=600, echo_headers=("x-order",))
NOW_MS = 1_700_000_000_000.0
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ("messages", "prompt", "url", "body", "custom_id", "method", "stream", "model", "token_ids")
)
values = (
    st.binary(max_size=200)
    | json_values.map(lambda v: json.dumps(v).encode())
    | st.dictionaries(names, json_values | st.just("/v1/completions"), max_size=6).map(
        lambda v: json.dumps(v).encode()
    )
)
header_names = st.text(max_size=20) | st.sampled_from(
    ("reply-to", "idempotency-key", "x-tenant", "x-request-timeout", "content-type", "traceparent")
)
headers = st.dictionaries(header_names, st.binary(max_size=3000), max_size=6)


def record(value=BODY, *, topic=TOPICS.requests, **changes):
    fields = {"key": b"k", "headers": {}, "timestamp_ms": 0, "received_ms": NOW_MS}
    return Record(topic, 3, 7, value=value, **(fields | changes))


@given(
    st.none() | values, headers, st.none() | st.binary(max_size=5000), st.integers(), st.booleans()
)
def test_whatever_is_in_a_record_gives_an_envelope_that_can_be_answered(
    value, given_headers, key, timestamp_ms, is_broker_time
):
    read = read_submission(
        record(
            value,
            headers=given_headers,
            key=key,
            timestamp_ms=timestamp_ms,
            is_broker_time=is_broker_time,
        ),
        dataclasses.replace(RULES, trusted_tenants=True),
    )

    envelope = read.envelope
    topic = envelope.reply.topic
    assert envelope.reply.via == "topic"
    assert topic is None or not TOPICS.is_inside(topic)
    assert envelope.deadline_ms <= NOW_MS + 600_000
    assert Envelope.decode(envelope.encode()) == envelope
    assert len(envelope.encode()) < len(value or b"") * 7 + MAX_RECORD_BYTES
    assert envelope.caller.source == "tokenfleet.requests/3/7"


@given(headers)
def test_echoed_headers_are_bounded_whatever_is_sent(given_headers):
    given_headers |= dict.fromkeys(ALWAYS_ECHOED, bytes(MAX_ECHOED_BYTES)) | {"x-order": b"1"}

    echoed = read_submission(record(headers=given_headers), RULES).envelope.caller.headers

    assert set(echoed) <= {*ALWAYS_ECHOED, "x-order"}
    assert sum(map(len, echoed.values())) <= 4 * MAX_ECHOED_BYTES


@pytest.mark.parametrize("timestamp_ms", [0, 1, NOW_MS - 10**9, NOW_MS + 10**9])
def test_a_producers_clock_has_no_say_in_the_deadline(timestamp_ms):
    read = read_submission(record(timestamp_ms=int(timestamp_ms)), RULES)

    assert read.envelope.deadline_ms == NOW_MS + 600_000


def test_the_brokers_clock_makes_the_deadline_the_same_at_every_delivery():
    appended = {"timestamp_ms": int(NOW_MS) - 5_000, "is_broker_time": True}

    first = read_submission(record(**appended), RULES).envelope
    again = read_submission(record(**appended, received_ms=NOW_MS + 60_000), RULES).envelope

    assert first.deadline_ms == again.deadline_ms == NOW_MS + 595_000


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(b"30", 30), (b"0.5", 0.5), (b"1e9", 600), (b" 7 ", 7)]
)
def test_a_header_shortens_the_deadline(timeout, seconds):
    read = read_submission(record(headers={"x-request-timeout": timeout}), RULES)

    assert read.error is None
    assert read.envelope.deadline_ms == NOW_MS + seconds * 1000


@pytest.mark.parametrize("timeout", [b"", b"x", b"-1", b"0", b"nan", b"inf", b"\xff", b"9" * 9999])
def test_a_timeout_that_is_none_is_refused_by_its_name(timeout):
    read = read_submission(record(headers={"x-request-timeout": timeout}), RULES)

    assert read.error is None if timeout == b"9" * 9999 else read.error.param == "x-request-timeout"


def test_a_refusal_goes_where_the_record_wants_its_answer():
    read = read_submission(
        record(headers={"reply-to": b"mine"}, key=bytes(MAX_KEY_BYTES + 1)), RULES
    )

    assert read.error.param == "key"
    assert read.envelope.reply.topic == "mine"


def test_a_refused_destination_is_told_under_the_records_own_key():
    read = read_submission(record(headers={"reply-to": b".."}), RULES)

    assert read.error.param == "reply-to"
    assert (read.envelope.caller.key, read.envelope.reply.topic) == (b"k", None)


@pytest.mark.parametrize("prefix", ["", "fleet."])
def test_topics_of_the_fleet_are_no_destinations_whatever_its_prefix(prefix):
    topics = Topics(prefix)
    rules = dataclasses.replace(RULES, topics=topics)

    def error_for(name):
        return read_submission(record(headers={"reply-to": name.encode()}), rules).error

    assert all(error_for(name) for name in topics.all() if name != topics.responses)
    assert error_for(topics.responses) is None
    assert error_for("somebody-elses") is None


def told(**changes):
    fields = {
        "id": "a" * 32,
        "kind": Kind.CHAT,
        "created_ms": int(NOW_MS),
        "deadline_ms": int(NOW_MS) + 1000,
        "reply": ReplyTo(replica="r", partition=3),
        "parts": {REQUEST: BODY},
    }
    return Envelope.model_validate(fields | changes)


def admitted(envelope):
    value = envelope if isinstance(envelope, bytes) else envelope.encode()
    return read_admission(record(value, topic=TOPICS.admissions), num_reply_partitions=4)


def test_an_admission_keeps_what_an_ingress_says_and_nothing_else():
    forged = told(
        route=["prefill", "reply"],
        ec_transfer_params={"a": {}},
        attempt=7,
        outcome={"status": 200},
        caller=Caller(request_id="mine", custom_id="x", key=b"k", headers={"a": b"b"}, source="s"),
        parts={REQUEST: BODY, "prompts": b"x"},
        held={"kwargs:image:a": {"digest": "d", "size": 1}},
    )

    assert admitted(forged) == told(caller=Caller(request_id="mine"))


def test_no_admission_lives_longer_than_topics_keep_records():
    deadline_ms = admitted(told(deadline_ms=2**62)).deadline_ms

    assert deadline_ms == NOW_MS + MAX_DEADLINE_S * 1000


@pytest.mark.parametrize("partition", [4, 1_000_000])
def test_a_reply_partition_that_is_not_there_is_refused(partition):
    with pytest.raises(DecodeError):
        admitted(told(reply=ReplyTo(partition=partition)))


forgeries = st.dictionaries(
    st.sampled_from(tuple(Envelope.model_fields)),
    json_values
    | st.binary(max_size=20)
    | st.dictionaries(
        st.sampled_from(
            ("via", "topic", "partition", "replica", "request_id", "tenant", "digest", "size")
        ),
        json_values | st.binary(max_size=20),
    ),
    max_size=4,
)


@given(forgeries)
def test_a_forged_admission_is_refused_or_harmless(changes):
    try:
        value = msgpack.packb(msgpack.unpackb(told().encode()) | changes)
        envelope = admitted(value)
    except (DecodeError, OverflowError, UnicodeEncodeError):
        return
    assert (envelope.route, envelope.held, envelope.outcome) == ([], {}, None)
    assert (envelope.reply.via, envelope.reply.topic) == ("ingress", None)
    assert 0 <= envelope.reply.partition < 4
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", envelope.id)
    assert set(envelope.parts) <= {REQUEST}
