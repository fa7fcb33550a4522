import pytest
import torch

from schemas.ec import descriptors
from schemas.envelope import Item
from schemas.errors import ApiError
from schemas.routes import Stop
from tests.engine.builders import MODELS, Fleet, image_body, text_body, without_payload


class Counted:
    """An encoder that counts what it really encodes."""

    def __init__(self, inner):
        self.inner, self.hashes = inner, []

    async def encode(self, items, *, deadline_ms):
        self.hashes += [item.mm_hash for item in items]
        return await self.inner.encode(items, deadline_ms=deadline_ms)


@pytest.fixture
def counted(fleet):
    fleet.encode._encoder = Counted(fleet.engines.encoder)
    yield fleet.encode._encoder
    fleet.encode._encoder = fleet.engines.encoder


async def test_an_item_is_readable_before_it_is_announced(fleet):
    body = image_body(images=2)
    job = await fleet.admit(body, "encode")

    await fleet.encode.process(job)

    for mm_hash in body["features"]["mm_hashes"]["image"]:
        entry = job.envelope.ec_transfer_params[mm_hash]
        rows, width = entry["shape"]
        (item,) = [item for item in job.envelope.items if item.mm_hash == mm_hash]
        found = await fleet.cache.get(
            mm_hash, rows=rows, width=width, dtypes=["float32"], key=item.key
        )
        assert found is not None
        assert width == 192
    assert all(item.encoded for item in job.envelope.items)


async def test_the_same_picture_twice_is_encoded_once_and_listed_with_both_places(fleet, counted):
    body = image_body()
    features = body["features"]
    start, length = features["mm_placeholders"]["image"][0].values()
    body["token_ids"] += body["token_ids"]
    features["mm_placeholders"]["image"].append(
        {"offset": start + len(body["token_ids"]) // 2, "length": length}
    )
    for name in ("mm_hashes", "kwargs_data", "mm_metadata"):
        features[name]["image"] *= 2

    _, answer = await fleet.ask(body, "encode")

    (mm_hash,) = set(features["mm_hashes"]["image"])
    assert counted.hashes == [mm_hash]
    assert answer["ec_transfer_params"][mm_hash]["item_indices"] == [0, 1]


async def test_what_is_in_the_cache_is_not_encoded_again(fleet, counted):
    body = image_body(images=2)

    await fleet.ask(body, "encode")
    await fleet.ask(body, "encode")

    assert sorted(counted.hashes) == sorted(body["features"]["mm_hashes"]["image"])


async def test_an_item_that_was_encoded_before_keeps_its_descriptor(fleet, counted):
    body = image_body()
    (mm_hash,) = body["features"]["mm_hashes"]["image"]
    job = await fleet.admit(body, "encode")
    job.envelope.ec_transfer_params = {mm_hash: {"peer_host": "10.0.0.1"}, "mine": {"x": 1}}
    job.envelope.items[0].encoded = True

    await fleet.encode.process(job)

    assert counted.hashes == []
    assert job.envelope.ec_transfer_params[mm_hash]["peer_host"] == "10.0.0.1"
    assert job.envelope.ec_transfer_params["mine"] == {"x": 1}


async def test_our_descriptor_replaces_a_listed_one_of_the_client(fleet):
    body = image_body()
    (mm_hash,) = body["features"]["mm_hashes"]["image"]
    stale = {"ec_items": [{"mm_hash": mm_hash, "checksum": "old"}, {"mm_hash": "b", "x": 1}]}
    job = await fleet.admit({**body, "ec_transfer_params": stale}, "encode")

    await fleet.encode.process(job)

    found = descriptors(job.envelope.ec_transfer_params)
    assert found[mm_hash]["checksum"] != "old"
    assert found["b"] == {"x": 1}


async def test_an_item_without_tensors_whose_embedding_is_not_stored_is_refused(fleet):
    job = await fleet.admit(image_body(), "encode")
    for name in [name for name in job.envelope.parts if name.startswith("kwargs:")]:
        job.drop(name)

    with pytest.raises(ApiError, match="kwargs_data") as error:
        await fleet.encode.process(job)

    assert error.value.status == 400


async def test_metadata_in_place_of_tensors_is_refused(fleet):
    body = image_body()
    body["features"]["kwargs_data"] = body["features"]["mm_metadata"]

    status, answer = await fleet.ask(body, "encode")

    assert status == 400
    assert "pixel_values" in answer["error"]["message"]


async def test_a_grid_that_does_not_fit_the_pixels_is_refused(fleet):
    one, two = image_body(), image_body(images=2)
    first, second = two["features"]["kwargs_data"]["image"]
    from tests.engine.items import with_field_of

    one["features"]["kwargs_data"]["image"] = [with_field_of(first, second, "image_grid_thw")]

    status, answer = await fleet.ask(one, "encode")

    assert status == 400
    assert "pixel_values must have the shape" in answer["error"]["message"]


async def test_a_text_request_has_nothing_to_tell(fleet):
    status, answer = await fleet.ask(text_body(), "encode")

    assert status == 200
    assert answer["ec_transfer_params"] is None
    assert answer["choices"][0]["token_ids"] == []


async def test_an_encode_only_server_answers_in_the_seed_form_by_default(tmp_path):
    fleet = Fleet(MODELS / "tiny-qwen3-vl", tmp_path, ec_params_format="seed")
    await fleet.start()
    body = image_body()

    _, answer = await fleet.ask(body, "encode")
    (entry,) = answer["ec_transfer_params"]["ec_items"]
    _, continued = await fleet.ask(
        {**without_payload(body), "ec_transfer_params": answer["ec_transfer_params"]}, "prefill"
    )
    await fleet.close()

    assert entry["mm_hash"] == body["features"]["mm_hashes"]["image"][0]
    assert entry["metadata"]["image_grid_thw"][0] == 1
    assert len(continued["choices"][0]["token_ids"]) > 0
    assert continued["ec_transfer_params"] is None


async def test_one_request_through_both_stages_tells_tokens_and_params(tmp_path):
    fleet = Fleet(MODELS / "tiny-qwen3-vl", tmp_path, ec_params_format="seed")
    await fleet.start()
    body = image_body()

    _, alone = await fleet.ask(body, "prefill")
    _, answer = await fleet.ask(body)
    await fleet.close()

    assert answer["choices"] == alone["choices"]
    assert answer["ec_transfer_params"]["ec_items"][0]["item_indices"] == [0]


async def test_a_modality_the_model_lacks_is_refused(fleet):
    job = await fleet.admit(image_body(), "encode")
    job.envelope.items = [Item(modality="audio", mm_hash="a", offset=0, length=1)]

    with pytest.raises(ApiError, match="audio"):
        await fleet.encode.process(job)


async def test_embeddings_are_the_towers_own_output(fleet):
    """Pooled rows and deep-stack features, side by side, from raw pixels normalised here."""
    from tests.engine.items import tensors_of

    body = image_body()
    job = await fleet.admit(body, "encode")
    await fleet.encode.process(job)
    fields = tensors_of(body["features"]["kwargs_data"]["image"][0])
    module = fleet.engines.encoder._loaded.module

    pixels = (fields["pixel_values"].float() / 255 - 0.5) / 0.5
    with torch.inference_mode():
        found = module.model.get_image_features(pixels, fields["image_grid_thw"][None])
    expected = torch.cat([found.pooler_output[0], *(f[0] for f in found.deepstack_features)], -1)

    (mm_hash,) = body["features"]["mm_hashes"]["image"]
    rows, width = expected.shape
    (item,) = job.envelope.items
    entry = await fleet.cache.get(mm_hash, rows=rows, width=width, dtypes=["float32"], key=item.key)
    stored = torch.frombuffer(bytearray(entry.data), dtype=torch.float32).reshape(rows, width)
    assert job.envelope.stop is Stop.ENCODE
    assert torch.allclose(stored, expected, atol=1e-5)
