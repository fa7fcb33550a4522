"""Records in, records out: admission, the legs between stages, healing, refusals."""

import orjson
import pytest

from runtime.storage.digest import digest_of
from schemas.envelope import PROMPTS, REQUEST, Envelope, kwargs_part, metadata_part
from schemas.identity import entry_key
from schemas.routes import Kind, Stop
from tests.coordinator.builders import (
    admission,
    at_coordinator,
    coordinator,
    from_ingress,
    generate_body,
    image_item,
    outcome_of,
    record,
)

TEXT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PICTURE = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "text", "text": "what?"},
            ],
        }
    ]
}
KEY = entry_key("aa", content=digest_of(image_item()))
K, M = kwargs_part("image", KEY), metadata_part("image", KEY)


async def handled(handler, incoming):
    (out,) = await handler.handle(incoming)
    return out


async def admitted(handler, body, **changes):
    out = await handled(handler, from_ingress(body, **changes))
    return out.topic, Envelope.decode(out.value)


async def test_a_text_chat_goes_to_render():
    topic, envelope = await admitted(coordinator(), TEXT)

    assert topic == "tokenfleet.render"
    assert envelope.route == [Stop.RENDER, Stop.PREFILL, Stop.DERENDER, Stop.REPLY]


async def test_a_chat_with_a_picture_passes_encode():
    _, envelope = await admitted(coordinator(), PICTURE)

    assert Stop.ENCODE in envelope.route


async def test_an_unknown_model_is_answered_at_once():
    out = await handled(coordinator(), from_ingress(TEXT | {"model": "nope"}))

    assert (out.topic, out.partition) == ("tokenfleet.replies", 3)
    assert outcome_of(out)["status"] == 404


async def test_a_bad_body_is_answered_at_once():
    out = await handled(coordinator(), from_ingress({"messages": "x"}))

    assert outcome_of(out)["status"] == 400
    assert outcome_of(out)["code"] == "invalid_request"


async def test_an_expired_request_is_answered_without_work():
    handler = coordinator()
    incoming = from_ingress(TEXT)
    envelope = Envelope.decode(incoming.value)
    envelope.deadline_ms = envelope.created_ms - 1

    out = await handled(handler, admission(envelope))

    assert outcome_of(out)["code"] == "deadline_exceeded"


async def test_an_ingress_envelope_cannot_smuggle_in_state():
    forged = from_ingress(TEXT, route=[Stop.PREFILL, Stop.REPLY], ec_transfer_params={"x": {}})

    out = await handled(coordinator(), forged)

    envelope = Envelope.decode(out.value)
    assert envelope.route[0] is Stop.RENDER
    assert envelope.ec_transfer_params is None


async def test_generate_with_tensors_goes_to_encode_without_metadata():
    topic, envelope = await admitted(coordinator(), generate_body(), kind=Kind.GENERATE)

    assert topic == "tokenfleet.encode"
    assert K in envelope.parts
    assert M not in envelope.parts
    assert M in envelope.held
    assert REQUEST not in envelope.parts
    assert PROMPTS in envelope.parts


async def test_after_encode_prefill_gets_metadata_and_no_tensors():
    handler = coordinator()
    _, envelope = await admitted(handler, generate_body(), kind=Kind.GENERATE)
    envelope.at += 1
    envelope.ec_transfer_params = {"aa": {"metadata": {}}}

    out = await handled(handler, at_coordinator(envelope))

    after = Envelope.decode(out.value)
    assert out.topic == "tokenfleet.prefill"
    assert M in after.parts
    assert K not in after.parts


async def test_prefill_after_encode_without_a_descriptor_is_refused():
    handler = coordinator()
    _, envelope = await admitted(handler, generate_body(), kind=Kind.GENERATE)
    envelope.at += 1

    out = await handled(handler, at_coordinator(envelope))

    assert outcome_of(out)["code"] == "embedding_missing"


async def test_metadata_with_ec_params_goes_straight_to_prefill():
    body = generate_body(kwargs=False, metadata=True, ec={"aa": {"peer_host": "h"}})

    topic, envelope = await admitted(coordinator(), body, kind=Kind.GENERATE)

    assert topic == "tokenfleet.prefill"
    assert metadata_part("image", "aa") in envelope.parts


@pytest.mark.parametrize("ec", [None, {}, []])
@pytest.mark.parametrize("metadata", [True, False])
async def test_no_tensors_and_no_ec_params_is_refused(metadata, ec):
    body = generate_body(kwargs=False, metadata=metadata, ec=ec)

    out = await handled(coordinator(), from_ingress(body, kind=Kind.GENERATE))

    assert outcome_of(out)["status"] == 400


async def test_a_pinned_encode_stops_after_encode():
    _, envelope = await admitted(coordinator(), generate_body(), kind=Kind.GENERATE, pin="encode")

    assert envelope.route == [Stop.ENCODE, Stop.REPLY]


async def test_a_pinned_prefill_keeps_legacy_tensors():
    topic, envelope = await admitted(
        coordinator(), generate_body(), kind=Kind.GENERATE, pin="prefill"
    )

    assert topic == "tokenfleet.prefill"
    assert K in envelope.parts


async def test_an_item_encoded_already_skips_encode():
    handler = coordinator()
    _, envelope = await admitted(handler, generate_body(), kind=Kind.GENERATE)
    envelope.route = [Stop.RENDER, Stop.COORDINATE, Stop.ENCODE, Stop.COORDINATE, Stop.PREFILL]
    envelope.at = 1
    envelope.items[0].encoded = True

    out = await handled(handler, at_coordinator(envelope))

    assert out.topic == "tokenfleet.prefill"


async def missing_at_prefill(handler):
    _, envelope = await admitted(handler, generate_body(), kind=Kind.GENERATE)
    envelope.at += 1
    envelope.ec_transfer_params = {"aa": {}}
    at_prefill = Envelope.decode((await handled(handler, at_coordinator(envelope))).value)
    at_prefill.missing = [KEY]
    at_prefill.route = [Stop.COORDINATE, *at_prefill.route[at_prefill.at :]]
    at_prefill.at = 0
    return at_prefill


async def test_a_lost_embedding_goes_to_encode_again():
    handler = coordinator()

    out = await handled(handler, at_coordinator(await missing_at_prefill(handler)))

    healed = Envelope.decode(out.value)
    assert out.topic == "tokenfleet.encode"
    assert K in healed.parts
    assert healed.heals == 1
    assert healed.route[healed.at :] == [
        Stop.ENCODE,
        Stop.COORDINATE,
        Stop.PREFILL,
        Stop.REPLY,
    ]


async def test_a_lost_embedding_whose_tensors_are_not_at_hand_goes_through_render():
    handler = coordinator()
    lost = await missing_at_prefill(handler)
    lost.held.clear()
    lost.parts = {REQUEST: b"{}"}

    out = await handled(handler, at_coordinator(lost))

    healed = Envelope.decode(out.value)
    assert out.topic == "tokenfleet.render"
    assert healed.route[healed.at :] == [
        Stop.RENDER,
        Stop.COORDINATE,
        Stop.ENCODE,
        Stop.COORDINATE,
        Stop.PREFILL,
        Stop.REPLY,
    ]


async def test_healing_ends_after_its_bound():
    handler = coordinator(max_heals=1)
    lost = await missing_at_prefill(handler)
    lost.heals = 1

    out = await handled(handler, at_coordinator(lost))

    assert outcome_of(out)["code"] == "embedding_missing"


async def test_a_lost_embedding_without_stored_tensors_is_refused_clearly():
    handler = coordinator()
    body = generate_body(kwargs=False, metadata=True, ec={"aa": {}})
    _, envelope = await admitted(handler, body, kind=Kind.GENERATE)
    envelope.missing = ["aa"]
    envelope.route = [Stop.COORDINATE, *envelope.route]

    out = await handled(handler, at_coordinator(envelope))

    assert outcome_of(out)["code"] == "embedding_missing"
    assert b"send kwargs_data" in outcome_of(out)["segments"][0]


async def test_a_producers_record_is_answered_on_responses_under_its_key():
    out = await handled(coordinator(), record(TEXT | {"model": "nope"}))

    answer = orjson.loads(out.value)
    assert (out.topic, out.key) == ("tokenfleet.responses", b"k")
    assert answer["response"]["status_code"] == 404
    assert answer["response"]["body"]["error"]["type"] == "NotFoundError"
    assert answer["error"]["code"] == "not_found"


async def test_the_same_record_delivered_twice_is_the_same_request():
    handler = coordinator()

    first = await handled(handler, record(TEXT))
    second = await handled(handler, record(TEXT))

    assert first.key == second.key
    assert (await handled(handler, record(TEXT, offset=8))).key != first.key


async def test_records_with_one_idempotency_key_are_one_request():
    headers = {"idempotency-key": b"x"}
    handler = coordinator()

    first = await handled(handler, record(TEXT, headers=headers))
    second = await handled(handler, record(TEXT, offset=8, headers=headers))

    assert first.key == second.key


@pytest.mark.parametrize("value", [b"\xff\xfenot json", b"{", b"[1]", b"null", None, {"foo": 1}])
async def test_a_record_that_is_no_request_is_answered(value):
    out = await handled(coordinator(), record(value))

    answer = orjson.loads(out.value)
    assert answer["response"]["status_code"] == 400
    assert answer["error"]["code"] == "invalid_request"


async def test_a_batch_line_names_url_and_custom_id():
    line = {
        "custom_id": "a-1",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "x", "model": "nope"},
    }

    out = await handled(coordinator(), record(line))

    assert orjson.loads(out.value)["custom_id"] == "a-1"


async def test_streams_are_refused_over_topics():
    out = await handled(coordinator(), record(TEXT | {"stream": True}))

    assert orjson.loads(out.value)["response"]["body"]["error"]["param"] == "stream"


async def test_a_render_over_topics_gives_no_tensors_unless_asked():
    line = {"url": "/v1/chat/completions/render", "body": PICTURE}

    out = await handled(coordinator(), record(line))

    body = orjson.loads(Envelope.decode(out.value).parts[REQUEST])
    assert body["mm_payload"] == "none"


@pytest.mark.parametrize("topic", ["tokenfleet.prefill", "a b", "x" * 250])
async def test_reply_to_cannot_name_a_topic_of_the_fleet(topic):
    out = await handled(coordinator(), record(TEXT, headers={"reply-to": topic.encode()}))

    assert out.topic == "tokenfleet.responses"
    assert orjson.loads(out.value)["error"]["code"] == "invalid_request"


async def test_the_first_outcome_of_a_request_wins():
    handler = coordinator()
    first = await handled(handler, record(TEXT | {"model": "nope"}))

    second = await handled(handler, record(TEXT | {"model": "another"}))

    assert second.value == first.value
