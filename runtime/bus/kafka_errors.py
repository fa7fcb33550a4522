"""Translates aiokafka's exceptions into ours, in one place. Knows nothing of what was attempted."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka import errors

from runtime.errors import BusError, OwnershipLost

# The group has moved on without us; what aiokafka raises depends on who noticed first.
_LOST = (
    errors.CommitFailedError,
    errors.IllegalStateError,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.RebalanceInProgressError,
)
# Not marked retriable there: the client has retried already, or needs to be made anew, which the
# next try does.
_AWAY = (
    errors.KafkaTimeoutError,
    errors.KafkaUnavailableError,
    errors.NotEnoughReplicasError,
    errors.BrokerNotAvailableError,
    errors.ReplicaNotAvailableError,
    errors.UnknownError,
    errors.ProducerClosed,
    errors.ProducerFenced,
    errors.OutOfOrderSequenceNumber,
    errors.InvalidProducerEpoch,
    errors.InvalidProducerIdMapping,
    errors.UnknownProducerId,
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise BusError or OwnershipLost instead of anything of aiokafka's."""
    try:
        yield
    except (errors.KafkaError, errors.ConsumerStoppedError, errors.IllegalOperation) as error:
        raise translate(error) from error


def translate(error: Exception) -> BusError:
    if isinstance(error, _LOST):
        return OwnershipLost(str(error))
    is_retriable = getattr(error, "retriable", False) or isinstance(error, _AWAY)
    return BusError(str(error), retriable=is_retriable)
