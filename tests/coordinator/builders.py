"""What the coordinator's tests are made of."""

import base64

import msgpack
import orjson

from coordinator.handler import CoordinatorHandler, CoordinatorRules
from coordinator.submissions import SubmissionRules
from runtime.bus import Record
from runtime.bus.memory import MemoryBus
from runtime.delivery import Delivery
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import CONTENT_TYPE, REQUEST, Envelope, ReplyTo, now_ms
from schemas.limits import ModelLimits
from schemas.mm_item import Field, Tensor, encode_item
from schemas.routes import Kind
from schemas.topics import Topics

TOPICS = Topics()
LIMITS = ModelLimits(max_model_len=8192, vocab_size=2048, served_names=("tiny",))


def coordinator(**changes):
    rules = CoordinatorRules(
        limits=LIMITS,
        submissions=SubmissionRules(cluster_id="c", topics=TOPICS, timeout_s=60),
        metadata_modalities=frozenset({"image"}),
        **changes,
    )
    bus = MemoryBus(num_partitions=8, topics=TOPICS)
    return CoordinatorHandler(rules, Delivery(MemoryBlobs(), TOPICS, bus=bus))


def record(value, *, topic=TOPICS.requests, key=b"k", offset=7, headers=None):
    value = value if isinstance(value, bytes | None) else orjson.dumps(value)
    return Record(topic, 0, offset, key, value, headers or {}, timestamp_ms=int(now_ms()))


def from_ingress(body, kind=Kind.CHAT, **changes):
    envelope = Envelope(
        id="i1",
        kind=kind,
        created_ms=int(now_ms()),
        deadline_ms=int(now_ms()) + 60_000,
        reply=ReplyTo(replica="r", partition=3),
        parts={REQUEST: body if isinstance(body, bytes) else orjson.dumps(body)},
        **changes,
    )
    return admission(envelope)


def admission(envelope):
    """What an ingress writes."""
    headers = {"content-type": CONTENT_TYPE.encode()}
    return record(envelope.encode(), topic=TOPICS.admissions, headers=headers)


def at_coordinator(envelope):
    return record(
        envelope.encode(),
        topic=TOPICS.prefix + "coordinate",
        headers={"content-type": CONTENT_TYPE.encode()},
    )


def image_item(rows=4):
    """Bytes of a full item with pixels and a grid."""
    pixels = Tensor("uint8", (rows, 6), bytes(range(rows * 6)))
    grid = Tensor("int64", (3,), bytes(24))
    return encode_item(
        {
            "pixel_values": Field(pixels, "flat", {"keep_on_cpu": False, "slices": [], "dim": 0}),
            "image_grid_thw": Field(grid, "batched", {"keep_on_cpu": True}),
        }
    )


def generate_body(*, kwargs=True, metadata=False, ec=None, hashes=("aa",)):
    features = {
        "mm_hashes": {"image": list(hashes)},
        "mm_placeholders": {
            "image": [{"offset": 1 + 2 * i, "length": 2} for i in range(len(hashes))]
        },
    }
    data = base64.b64encode(image_item()).decode()
    if kwargs:
        features["kwargs_data"] = {"image": [data] * len(hashes)}
    if metadata:
        features["mm_metadata"] = {"image": [data] * len(hashes)}
    body = {
        "token_ids": [1] * (2 + 2 * len(hashes)),
        "features": features,
        "sampling_params": {"max_tokens": 4},
    }
    return body | ({"ec_transfer_params": ec} if ec is not None else {})


def outcome_of(reply):
    return msgpack.unpackb(reply.value)["outcome"]
