"""Sends items whose embedding was evicted or lost to encode again, a bounded number of times.

Where their tensors are not at hand, the request goes through render once more, which has or makes
them.
"""

from runtime.stage import Job
from schemas.ec import descriptors
from schemas.envelope import REQUEST, Item, kwargs_part
from schemas.errors import ApiError, FailureCode
from schemas.routes import Stop


def heal(job: Job, max_heals: int) -> None:
    """Route the missing items through encode. Raise ApiError where that is impossible."""
    envelope = job.envelope
    missing = [item for item in envelope.items if item.key in envelope.missing]
    if envelope.heals >= max_heals:
        raise _lost(missing, f"it was lost again after {envelope.heals} repairs")
    without_tensors = [item for item in missing if not _has_tensors(job, item)]
    if without_tensors and not job.has(REQUEST):
        raise _lost(without_tensors, "its tensors are not stored; send kwargs_data")
    known = descriptors(envelope.ec_transfer_params)
    lost = {name for item in missing for name in (item.key, item.mm_hash)}
    envelope.ec_transfer_params = {name: d for name, d in known.items() if name not in lost}
    for item in missing:
        item.encoded = False
    envelope.missing = []
    envelope.heals += 1
    # [coordinate, prefill, …] becomes [coordinate, encode, coordinate, prefill, …]
    detour = [Stop.RENDER, Stop.COORDINATE] if without_tensors else []
    envelope.route[1:1] = [*detour, Stop.ENCODE, Stop.COORDINATE]


def _has_tensors(job: Job, item: Item) -> bool:
    name = kwargs_part(item.modality, item.key)
    return name in job.envelope.parts or name in job.envelope.held


def _lost(items: list[Item], why: str) -> ApiError:
    names = ", ".join(f"{item.modality} {item.mm_hash[:16]}…" for item in items)
    return ApiError(
        f"the embedding of {names} is not in the encoder cache: {why}",
        param="ec_transfer_params",
        code=FailureCode.EMBEDDING_MISSING,
    )
