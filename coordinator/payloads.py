"""Carries out the payload rules on an envelope: which parts the next stage may read.

Parts that are stripped for a stage but needed by a later one, or by a heal, stay referenced in
`envelope.held`, out of that stage's reach.
"""

from coordinator.rules import Action, Facts, Leg, apply
from runtime.stage import Job
from schemas.ec import descriptor_of, descriptors, is_present
from schemas.envelope import Envelope, Item, kwargs_part, metadata_part


async def apply_leg(job: Job, leg: Leg, metadata_modalities: frozenset[str]) -> int:
    """Give and strip the parts of every item; return how many items the stage works on.

    Raise ApiError where a rule rejects an item.
    """
    envelope = job.envelope
    envelope.parts.update(envelope.held)
    envelope.held.clear()
    facts = [(item, facts_of(envelope, item, leg, metadata_modalities)) for item in envelope.items]
    decided = apply(leg, facts)
    allowed = set()
    for item, rule in decided:
        if rule.sends_kwargs:
            allowed.add(kwargs_part(item.modality, item.key))
        if rule.sends_metadata:
            allowed.add(metadata_part(item.modality, item.key))
        if rule.action is Action.SKIP:
            item.encoded = True
    await _hold_payloads(job, allowed)
    return sum(rule.action is Action.SEND for _, rule in decided)


def facts_of(
    envelope: Envelope, item: Item, leg: Leg, metadata_modalities: frozenset[str]
) -> Facts:
    """What is known of an item. After our own encode, E means a descriptor for its hash."""
    params = envelope.ec_transfer_params
    if leg is Leg.PREFILL_ENCODED:
        known = descriptors(params)
        covered = (
            descriptor_of(known, key=item.key, mm_hash=item.mm_hash, content=item.content)
            is not None
        )
    else:
        covered = is_present(params)
    return Facts(
        kwargs=kwargs_part(item.modality, item.key) in envelope.parts,
        metadata=metadata_part(item.modality, item.key) in envelope.parts,
        ec=covered,
        encoded=item.encoded,
        needs_metadata=item.modality in metadata_modalities,
    )


async def _hold_payloads(job: Job, allowed: set[str]) -> None:
    envelope = job.envelope
    payloads = {
        name
        for item in envelope.items
        for name in (
            kwargs_part(item.modality, item.key),
            metadata_part(item.modality, item.key),
        )
        if name in envelope.parts
    }
    for name in sorted(payloads - allowed):
        envelope.held[name] = await job.spill(name)
        job.drop(name)
