"""The coordinator's handler: admits requests and applies the payload rules between stages.

Holds no state: everything it needs is in the record. What it does is decided in `rules`,
`admission` and `submissions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.admission import plan
from coordinator.admissions import read_admission
from coordinator.features import take_features
from coordinator.healing import heal
from coordinator.payloads import apply_leg
from coordinator.rules import Leg
from coordinator.submissions import (
    Submission,
    SubmissionRules,
    read_submission,
    reply_refused,
)
from runtime.bus import Outgoing, Record, TopicInfo
from runtime.delivery import Delivery, expired, failure, until_deadline
from runtime.errors import BusError, is_away
from runtime.execution import Emit
from runtime.grants import is_granted
from runtime.reporting import bind_request
from runtime.request_body import RequestBodies, off_loop
from runtime.stage import Job
from runtime.stage_handler import (
    dead_letter,
    emit_nothing,
    forward,
    read_envelope,
    readable_envelope,
)
from schemas.checks import check_request
from schemas.envelope import REQUEST, BlobRef, Envelope, now_ms
from schemas.errors import ApiError, DecodeError
from schemas.generate import GenerateRequest
from schemas.limits import ModelLimits
from schemas.routes import STREAMING_KINDS, Stop


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """What the coordinator knows of its fleet."""

    limits: ModelLimits
    submissions: SubmissionRules
    metadata_modalities: frozenset[str] = frozenset()
    """Modalities for which the model exposes metadata (02 §6)."""
    max_heals: int = 2


class CoordinatorHandler:
    """Handler for the topics `requests`, `admissions` and `coordinate`."""

    def __init__(
        self, rules: CoordinatorRules, delivery: Delivery, bodies: RequestBodies | None = None
    ) -> None:
        """`bodies` are shared with the render stage where that is in the same process."""
        self.rules = rules
        self.delivery = delivery
        self._hands_over = bodies is not None
        self._bodies = bodies or RequestBodies(rules.limits)

    async def handle(self, record: Record, emit: Emit = emit_nothing) -> Sequence[Outgoing]:
        topics = self.delivery.topics
        if record.topic == topics.requests:
            return await self._admit(await self._submitted(record))
        if record.topic == topics.admissions:
            return await self._admit(Submission(await self._told_by_ingress(record)))
        return await self._coordinate(record)

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        envelope = await self._answerable(record)
        return await dead_letter(
            record, error, attempts, Stop.COORDINATE, self.delivery, envelope=envelope
        )

    async def _answerable(self, record: Record) -> Envelope | None:
        """The request of a record, as far as somebody waits for its answer."""
        if record.unreadable:
            return None
        topics = self.delivery.topics
        if record.topic == topics.requests:
            return (await self._submitted(record)).envelope
        if record.topic != topics.admissions:
            return await readable_envelope(record, self.delivery.blobs)
        try:
            return read_admission(record, await self._num_reply_partitions())
        except DecodeError:
            return None

    async def _submitted(self, record: Record) -> Submission:
        """A record from outside, the topic that it wants its answer on looked at."""
        read = await off_loop(record.value or b"", read_submission, record, self.rules.submissions)
        envelope = read.envelope
        with until_deadline(envelope):
            why_not = await self._why_no_answer(envelope)
        if why_not is None:
            return read
        error = reply_refused(envelope.reply.topic or "", why_not)
        envelope.reply.topic = None
        return Submission(envelope, error)

    async def _why_no_answer(self, envelope: Envelope) -> str | None:
        """What is wrong with the topic that the caller has chosen."""
        if (topic := envelope.reply.topic) is None:
            return None
        try:
            return _why_unfit(topic, await self.delivery.topic_info(topic))
        except BusError as error:
            if is_away(error) and not envelope.is_expired(now_ms()):
                raise
            return "the broker does not say what it is"

    async def _told_by_ingress(self, record: Record) -> Envelope:
        envelope = read_admission(record, await self._num_reply_partitions())
        body = envelope.parts.get(REQUEST)
        if body is None:
            raise DecodeError("an admission without a request")
        if isinstance(body, BlobRef):
            with until_deadline(envelope):
                await self._require_grant(envelope, body)
        return envelope

    async def _require_grant(self, envelope: Envelope, body: BlobRef) -> None:
        if not await is_granted(self.delivery.blobs, envelope.id, body):
            raise DecodeError("the request refers to a body that no ingress has put there for it")

    async def _num_reply_partitions(self) -> int:
        info = await self.delivery.topic_info(self.delivery.topics.replies)
        if info is None:
            raise BusError("the topic of replies is gone")
        return info.num_partitions

    async def _admit(self, submission: Submission) -> Sequence[Outgoing]:
        envelope = submission.envelope
        bind_request(envelope)
        job = Job(envelope, self.delivery.blobs)
        with until_deadline(envelope):
            try:
                if submission.error is not None:
                    raise submission.error
                _check_deadline(envelope)
                await self._route(job)
            except ApiError as error:
                return await self._refuse(envelope, error)
            return [await forward(job, self.delivery)]

    async def _route(self, job: Job) -> None:
        """Validate the body and set the route."""
        envelope, limits = job.envelope, self.rules.limits
        body, raw = await self._bodies.read(job)
        if envelope.reply.via == "topic":
            _refuse_stream(body)
        await off_loop(raw, check_request, envelope.kind, body, limits)
        envelope.route = plan(envelope.kind, body, envelope.pin)
        envelope.streams = envelope.kind in STREAMING_KINDS and bool(getattr(body, "stream", False))
        if isinstance(body, GenerateRequest):
            await take_features(job, body, raw)
            if envelope.stop is Stop.RENDER:
                return
            job.drop(REQUEST)
            leg = Leg.ENCODE if envelope.stop is Stop.ENCODE else Leg.PREFILL_DIRECT
            await apply_leg(job, leg, self.rules.metadata_modalities)
        elif self._hands_over and envelope.stop is Stop.RENDER:
            self._bodies.keep(job, body, raw)

    async def _coordinate(self, record: Record) -> Sequence[Outgoing]:
        envelope = await read_envelope(record, self.delivery.blobs)
        bind_request(envelope)
        if envelope.stop is not Stop.COORDINATE:
            raise DecodeError(f"a record for {envelope.stop} on the topic of the coordinator")
        job = Job(envelope, self.delivery.blobs)
        with until_deadline(envelope):
            try:
                _check_deadline(envelope)
                if envelope.missing:
                    heal(job, self.rules.max_heals)
                await self._advance(job)
            except ApiError as error:
                return await self._refuse(envelope, error)
            return [await forward(job, self.delivery)]

    async def _advance(self, job: Job) -> None:
        """Go to the next stop, past an encode that has nothing to do."""
        envelope, modalities = job.envelope, self.rules.metadata_modalities
        if envelope.next_stop is Stop.ENCODE and not await apply_leg(job, Leg.ENCODE, modalities):
            envelope.at += 2
        if envelope.next_stop is Stop.PREFILL:
            await apply_leg(job, Leg.PREFILL_ENCODED, modalities)
        envelope.at += 1

    async def _refuse(self, envelope: Envelope, error: ApiError) -> Sequence[Outgoing]:
        envelope.outcome = failure(error)
        return await self.delivery.deliver(envelope)


def _check_deadline(envelope: Envelope) -> None:
    if envelope.is_expired(now_ms()):
        raise expired(envelope)


def _refuse_stream(body: object) -> None:
    if getattr(body, "stream", None):
        raise ApiError(
            "stream is not available over topics: answers are whole records", param="stream"
        )


def _why_unfit(topic: str, info: TopicInfo | None) -> str | None:
    """What makes a topic none to answer on; `__` begins the names of Kafka's own."""
    if info is None:
        return "there is no such topic"
    if info.is_internal or topic.startswith("__"):
        return "it is Kafka's own"
    return None
