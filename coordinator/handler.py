"""The coordinator's handler: admits requests and applies the payload rules between stages.

Holds no state: everything it needs is in the record. What it does is decided in `rules`,
`admission` and `submissions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.admission import plan
from coordinator.features import take_features
from coordinator.healing import heal
from coordinator.payloads import apply_leg
from coordinator.rules import Leg
from coordinator.submissions import SubmissionRules, read_submission
from runtime.bus import Outgoing, Record
from runtime.delivery import Delivery, failure
from runtime.reporting import bind_request
from runtime.request_body import RequestBodies
from runtime.stage import Job
from runtime.stage_handler import dead_letter, decode_record, expired, forward
from schemas.checks import check_request
from schemas.envelope import REQUEST, Envelope, now_ms
from schemas.errors import ApiError, DecodeError
from schemas.generate import GenerateRequest
from schemas.limits import ModelLimits
from schemas.routes import Stop


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """What the coordinator knows of its fleet."""

    limits: ModelLimits
    submissions: SubmissionRules
    metadata_modalities: frozenset[str] = frozenset()
    """Modalities for which the model exposes metadata (02 §6)."""
    max_heals: int = 2


class CoordinatorHandler:
    """Handler for the topics `requests` and `coordinate`."""

    def __init__(
        self, rules: CoordinatorRules, delivery: Delivery, bodies: RequestBodies | None = None
    ) -> None:
        """`bodies` are shared with the render stage where that is in the same process."""
        self.rules = rules
        self.delivery = delivery
        self._hands_over = bodies is not None
        self._bodies = bodies or RequestBodies(rules.limits)

    async def handle(self, record: Record) -> Sequence[Outgoing]:
        if record.topic == self.delivery.topics.requests:
            return await self._admit(record)
        return await self._coordinate(record)

    async def give_up(self, record: Record, error: Exception, attempts: int) -> Sequence[Outgoing]:
        return await dead_letter(record, error, attempts, Stop.COORDINATE, self.delivery)

    async def _admit(self, record: Record) -> Sequence[Outgoing]:
        submission = read_submission(record, self.rules.submissions)
        bind_request(submission.envelope)
        job = Job(submission.envelope, self.delivery.blobs)
        try:
            if submission.error is not None:
                raise submission.error
            _check_deadline(job.envelope)
            await self._route(job)
        except ApiError as error:
            return await self._refuse(job.envelope, error)
        return [await forward(job, self.delivery)]

    async def _route(self, job: Job) -> None:
        """Validate the body and set the route."""
        envelope, limits = job.envelope, self.rules.limits
        body, raw = await self._bodies.read(job)
        check_request(envelope.kind, body, limits)
        envelope.route = plan(envelope.kind, body, envelope.pin)
        if isinstance(body, GenerateRequest):
            await take_features(job, body)
            if envelope.stop is Stop.RENDER:
                return
            job.drop(REQUEST)
            leg = Leg.ENCODE if envelope.stop is Stop.ENCODE else Leg.PREFILL_DIRECT
            await apply_leg(job, leg, self.rules.metadata_modalities)
        elif self._hands_over and envelope.stop is Stop.RENDER:
            self._bodies.keep(job, body, raw)

    async def _coordinate(self, record: Record) -> Sequence[Outgoing]:
        envelope = decode_record(record)
        bind_request(envelope)
        if envelope.stop is not Stop.COORDINATE:
            raise DecodeError(f"a record for {envelope.stop} on the topic of the coordinator")
        job = Job(envelope, self.delivery.blobs)
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
