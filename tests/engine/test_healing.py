"""A lost embedding is made again, and the answer is what it would have been."""

import shutil

import pytest

from coordinator.healing import heal
from coordinator.payloads import apply_leg
from coordinator.rules import Leg
from schemas.errors import EmbeddingMissing
from schemas.routes import Stop
from tests.engine.builders import image_body


async def prefill_or_report(fleet, job):
    """As the stage's handler does with a miss."""
    try:
        await fleet.prefill.process(job)
    except EmbeddingMissing as error:
        envelope = job.envelope
        envelope.missing = sorted(error.hashes)
        envelope.route = [Stop.COORDINATE, *envelope.route[envelope.at :]]
        envelope.at = 0
        return False
    return True


def lose(fleet, key):
    shutil.rmtree(fleet.cache._root / key)


def damage(fleet, key):
    (fleet.cache._root / key / "encoder_cache.safetensors").write_bytes(b"torn")


@pytest.mark.parametrize("harm", [lose, damage])
async def test_an_embedding_lost_between_encode_and_prefill_is_made_again(harm, fleet):
    body = image_body(images=2)
    _, expected = await fleet.ask(body, "prefill")
    job = await fleet.admit(body)
    await fleet.encode.process(job)
    job.envelope.at = 2
    await apply_leg(job, Leg.PREFILL_ENCODED, fleet.metadata_modalities)
    lost, kept = body["features"]["mm_hashes"]["image"]
    key = job.envelope.items[0].key
    harm(fleet, key)

    assert not await prefill_or_report(fleet, job)
    assert job.envelope.missing == [key]
    assert job.envelope.items[0].mm_hash == lost
    heal(job, max_heals=2)
    await apply_leg(job, Leg.ENCODE, fleet.metadata_modalities)
    job.envelope.at = 1
    await fleet.encode.process(job)
    job.envelope.at = 3
    await apply_leg(job, Leg.PREFILL_ENCODED, fleet.metadata_modalities)
    assert await prefill_or_report(fleet, job)

    _, body = await fleet.run(job)
    assert body["choices"] == expected["choices"]
    assert kept in job.envelope.ec_transfer_params
