"""The envelope: one request at one stop of its route, as it travels between stages.

Everything later stops need is inside or referenced, so no stage keeps state between records
(design: "A request's way"). Knows no bus and no store.
"""

import hashlib
import time
from typing import Annotated, Any, Literal

import msgpack
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from schemas.errors import DecodeError
from schemas.routes import Kind, Stop
from schemas.topics import is_topic_name

VERSION: Literal[1] = 1
CONTENT_TYPE = "application/vnd.tokenfleet.envelope"
REFERENCE_TYPE = "application/vnd.tokenfleet.envelope-reference"
"""The record holds a BlobRef: the envelope is larger than a record may be, and in the store."""

# Names of the parts that stages hand to each other.
REQUEST = "request"
"""JSON bytes of the caller's body, unchanged."""
PROMPTS = "prompts"
"""msgpack list, one map per prompt: a GenerateRequest without payloads (plus `prompt_text`)."""
GENERATED = "generated"
"""msgpack list, one map per prompt: a GenerateResponse."""


def kwargs_part(modality: str, key: str) -> str:
    """Part that holds the full MultiModalKwargsItem of an item (msgpack bytes), by `Item.key`."""
    return f"kwargs:{modality}:{key}"


def metadata_part(modality: str, key: str) -> str:
    """Part that holds only the metadata fields of an item (msgpack bytes), by `Item.key`."""
    return f"metadata:{modality}:{key}"


RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""Names objects in the store and keys records: nothing that means something to either."""
Digest = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_:=+@-][A-Za-z0-9_:=+@.-]{0,199}$")]


def _require_topic_name(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError("not a name that a topic can have")
    return name


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BlobRef(_Model):
    """A part that lives in the blob store."""

    digest: Digest
    """blake3 of the content, lowercase hex; also its key."""
    size: int = Field(ge=0)
    """Bytes."""

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(self.model_dump())
        return packed

    @classmethod
    def decode(cls, data: bytes) -> "BlobRef":
        """Raise DecodeError for anything else."""
        try:
            return cls.model_validate(msgpack.unpackb(data, strict_map_key=False))
        except (ValidationError, ValueError, TypeError, msgpack.UnpackException) as error:
            raise DecodeError(f"not a reference to an envelope: {error}") from error


class Item(_Model):
    """One multimodal item of one prompt. Its payloads are parts named by modality and key."""

    prompt: int = 0
    """Index into the prompts of the request."""
    modality: str
    mm_hash: str
    """The name on the wire, in render's answers and in descriptors."""
    entry: str = ""
    """The name inside (`schemas.identity`) where it is not the hash itself."""
    alias: str = ""
    """Name under which a caller's tensors are found by their hash alone; empty for an item that
    was rendered here."""
    content: str = ""
    """Digest of the tensors that the caller sent, or means."""
    by_caller: bool = False
    """The caller made its numbers: what is wrong with them is the caller's fault."""
    offset: int
    """First placeholder position in the prompt's token_ids."""
    length: int
    """Tokens in the placeholder range."""
    embeds: list[tuple[int, int]] | None = None
    """(start, length) runs inside the range that hold embeddings; None: the whole range does."""
    encoded: bool = False
    """The embedding is in the encoder cache already: encode skips the item."""

    @property
    def key(self) -> str:
        """What its parts and its entry in the encoder cache are named by."""
        return self.entry or self.mm_hash

    @property
    def num_embeds(self) -> int:
        return self.length if self.embeds is None else sum(n for _, n in self.embeds)


class Caller(_Model):
    """What the caller told about itself; carried along, never used as a key."""

    request_id: str | None = None
    """`X-Request-Id`, or the id of a generate body."""
    custom_id: str | None = None
    """Of a line in OpenAI's Batch form."""
    tenant: str = ""
    key: bytes | None = None
    """Key of the producer's record."""
    source: str | None = None
    """topic/partition/offset of the producer's record."""
    headers: dict[str, bytes] = Field(default_factory=dict)
    """Of the producer's record, those that its answer repeats."""


class ReplyTo(_Model):
    """Where the outcome goes."""

    via: Literal["ingress", "topic"] = "ingress"
    replica: str = Field("", max_length=200)
    """Id of the waiting ingress replica; others ignore the reply."""
    partition: int = Field(0, ge=0, lt=2**31)
    """Partition of `replies` that the replica reads."""
    topic: Annotated[str, AfterValidator(_require_topic_name)] | None = None
    """Full topic name for outside producers; None: the fleet's `responses`."""


class Base64Of(_Model):
    """A hole in an outcome's body: base64 text of a blob's content goes here."""

    blob: BlobRef


class Outcome(_Model):
    """How a request ended. The first one written wins."""

    status: int
    """HTTP status."""
    segments: list[bytes | Base64Of] = Field(default_factory=list)
    """JSON text in pieces; large tensors stay in the store until the edge."""
    code: str | None = None
    """FailureCode, when it is a failure."""
    message: str | None = None
    """The failure in words."""


class Hop(_Model):
    """One stop already passed, for people: demo, logs and benchmarks."""

    stop: Stop
    queue_ms: float
    work_ms: float
    bytes_in: int
    """Size of the record taken from the bus."""
    blob_bytes: int = 0
    """Bytes newly written to the store at this stop."""


class Envelope(_Model):
    version: Literal[1] = VERSION
    id: RequestId
    """Internal request id; key of every record; see `ids`."""
    kind: Kind
    route: list[Stop] = Field(default_factory=list)
    pin: Literal["encode", "prefill"] | None = None
    """A generate request for one stage only, as the ingress that took it is set up."""
    streams: bool = False
    """The caller wants the answer as it grows."""
    run: str | None = None
    """Set while the answer still grows: the execution of prefill that this copy comes from."""
    at: int = Field(0, ge=0)
    """Index in `route` of the stop this record is for. An empty route: not admitted yet."""
    attempt: int = 0
    """Retries of the current stop so far."""
    heals: int = 0
    """How often lost embeddings were made again."""
    created_ms: int
    deadline_ms: int
    """Unix milliseconds after which nobody waits for the answer."""
    sent_ms: float = 0.0
    """When the previous stop produced this record, for the queue time."""
    caller: Caller = Field(default_factory=Caller)
    reply: ReplyTo = Field(default_factory=ReplyTo)
    items: list[Item] = Field(default_factory=list)
    ec_transfer_params: dict[str, Any] | None = None
    """Map from mm_hash to descriptor plus whatever the client sent; see schemas.ec."""
    parts: dict[str, bytes | BlobRef] = Field(default_factory=dict)
    """What this stop may read."""
    held: dict[str, BlobRef] = Field(default_factory=dict)
    """Parts that this stop must not see but a later one, or a heal, needs: references only."""
    missing: list[str] = Field(default_factory=list)
    """Keys of items whose embedding prefill did not find; the coordinator heals them."""
    outcome: Outcome | None = None
    trace: list[Hop] = Field(default_factory=list)

    @property
    def stop(self) -> Stop | None:
        return self.route[self.at] if self.at < len(self.route) else None

    @property
    def next_stop(self) -> Stop | None:
        return self.route[self.at + 1] if self.at + 1 < len(self.route) else None

    def is_expired(self, now_ms: float) -> bool:
        return now_ms >= self.deadline_ms

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(
            self.model_dump(exclude_defaults=True) | {"version": self.version}
        )
        return packed

    @classmethod
    def decode(cls, data: bytes) -> "Envelope":
        """Raise DecodeError for anything that is not an envelope of this version."""
        try:
            return cls.model_validate(msgpack.unpackb(data, strict_map_key=False))
        # TypeError: a map whose key is a list.
        except (ValidationError, ValueError, TypeError, msgpack.UnpackException) as error:
            raise DecodeError(f"not an envelope: {error}") from error


def derive_seed(request_id: str, prompt: int, choice: int) -> int:
    """A seed in [0, 2**63) for a choice whose caller gave none, equal on every redelivery."""
    text = f"{request_id}/{prompt}/{choice}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def now_ms() -> float:
    return time.time() * 1000
