"""What the pipeline does with a request's media as a whole: sharing, skipping, refusing."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.storage import Embedding
from runtime.storage.blobs import open_blobs
from runtime.storage.digest import digest_of
from runtime.storage.memory_blobs import MemoryBlobs
from schemas.envelope import BlobRef
from schemas.errors import ApiError
from schemas.mm_item import decode_item
from tests.models_media.builders import LLAVA, image, load, make_pipeline, video
from tests.models_media.pictures import data_url, encoded, noise, png
from tests.models_media.pictures import video as make_video
from workers.models import images
from workers.models.limits import MediaLimits
from workers.render.media import MediaPart

RED = data_url(png(seed=1))
GREEN = data_url(png(seed=2))
BLUE = data_url(png(96, 96, seed=3))


class CountingBlobs(MemoryBlobs):
    """A store that counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.names: list[str] = []

    async def put(self, data: bytes, *, digest: str | None = None) -> BlobRef:
        self.puts += 1
        return await super().put(data, digest=digest)

    async def put_named(self, name: str, data: bytes) -> None:
        self.names.append(name)
        await super().put_named(name, data)


class Known:
    """An encoder cache that has these hashes."""

    def __init__(self, *hashes: str) -> None:
        self.hashes = set(hashes)

    async def contains(self, mm_hash: str, *, key: str = "") -> bool:
        return (key or mm_hash) in self.hashes

    async def put(self, mm_hash: str, embedding: Embedding) -> dict[str, Any]:
        raise NotImplementedError

    async def get(self, mm_hash: str, **_: Any) -> Embedding | None:
        raise NotImplementedError


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each picture that is decoded."""
    calls: list[int] = []
    original = images.decode
    lock = threading.Lock()

    def counting(*arguments: Any) -> images.Picture:
        with lock:
            calls.append(len(arguments[0]))
        return original(*arguments)

    monkeypatch.setattr(images, "decode", counting)
    return calls


async def refusal(*parts: MediaPart, pipeline: Any = None, **options: Any) -> ApiError:
    used = pipeline or make_pipeline()
    with pytest.raises(ApiError) as caught:
        await load(used, *parts, **options)
    if pipeline is None:
        await used.close()
    return caught.value


class TestOrder:
    async def test_items_are_in_the_order_of_the_parts(self) -> None:
        pipeline = make_pipeline()

        items = await load(pipeline, image(RED), image(BLUE), image(GREEN))

        assert [len(item.replacement) for item in items] == [4, 9, 4]
        assert len({item.mm_hash for item in items}) == 3

    async def test_the_same_picture_twice_is_two_items_with_one_hash(
        self, decoded: list[int]
    ) -> None:
        first, second = await load(make_pipeline(), image(RED), image(RED))

        assert first == second
        assert len(decoded) == 1

    async def test_placeholders_are_taken_in_order_by_modality(self) -> None:
        pipeline = make_pipeline()
        pad, film = 2012, 2013
        parts = [image(RED), video("x"), image(GREEN)]

        assert pipeline.locate([7, pad, 7, film, pad], parts) == [(1, 1), (3, 1), (4, 1)]

    @pytest.mark.parametrize("ids", [[7], [2012, 2012]])
    async def test_a_template_that_loses_or_invents_pictures_is_refused(
        self, ids: list[int]
    ) -> None:
        with pytest.raises(ApiError) as caught:
            make_pipeline().locate(ids, [image(RED)])

        assert caught.value.status == 400


class TestSharing:
    async def test_concurrent_requests_process_a_picture_once(self, decoded: list[int]) -> None:
        pipeline = make_pipeline()

        results = await asyncio.gather(*(load(pipeline, image(RED)) for _ in range(8)))

        assert len(decoded) == 1
        assert all(result == results[0] for result in results)

    async def test_a_picture_in_the_store_is_not_decoded_again(self, decoded: list[int]) -> None:
        blobs = CountingBlobs()
        first = await load(make_pipeline(blobs=blobs), image(RED))

        again = await load(make_pipeline(blobs=blobs), image(RED))

        assert again == first
        assert (len(decoded), blobs.puts) == (1, 1)

    async def test_a_name_without_its_blob_counts_for_nothing(self, decoded: list[int]) -> None:
        swept, blobs = CountingBlobs(), CountingBlobs()
        (first,) = await load(make_pipeline(blobs=swept), image(RED))
        (name,) = swept.names
        await blobs.put_named(name, await swept.get_named(name) or b"")

        (again,) = await load(make_pipeline(blobs=blobs), image(RED))

        assert again == first
        assert isinstance(again.kwargs, BlobRef)
        assert await blobs.get(again.kwargs)
        assert len(decoded) == 2

    async def test_tensors_in_a_shared_store_can_be_verified(self, tmp_path: Path) -> None:
        blobs = open_blobs(tmp_path.as_uri())

        (item,) = await load(make_pipeline(blobs=blobs), image(RED))

        assert isinstance(item.kwargs, BlobRef)
        assert item.kwargs.digest == digest_of(await blobs.get(item.kwargs))

    async def test_a_cancelled_request_leaves_its_neighbour_alone(self) -> None:
        pipeline = make_pipeline()
        leader = asyncio.create_task(load(pipeline, image(RED)))
        follower = asyncio.create_task(load(pipeline, image(RED)))
        await asyncio.sleep(0)
        leader.cancel()

        (item,) = await follower
        assert item.kwargs is not None

    @pytest.mark.parametrize(
        "other",
        [
            {"render": {"mm_device_do_normalize": False}},
            {"render": {"mm_processor_kwargs": {"min_pixels": 65536}}},
            {"model": {"dtype": "float32"}, "render": {"mm_device_do_normalize": False}},
        ],
    )
    async def test_other_processor_settings_do_not_meet(
        self, other: Mapping[str, Any], decoded: list[int]
    ) -> None:
        blobs = MemoryBlobs()
        (mine,) = await load(make_pipeline(blobs=blobs), image(RED))

        (theirs,) = await load(make_pipeline(blobs=blobs, **other), image(RED))

        assert mine.mm_hash == theirs.mm_hash
        assert mine.kwargs != theirs.kwargs
        assert len(decoded) == 2


class TestSkipping:
    async def test_a_known_embedding_needs_no_pixels(self, decoded: list[int]) -> None:
        (made,) = await load(make_pipeline(), image(RED))
        pipeline = make_pipeline(encoder_cache=Known(made.mm_hash))
        decoded.clear()

        (item,) = await load(pipeline, image(RED), skip_encoded=True)

        assert item.encoded
        assert item.kwargs is None
        assert (item.metadata, item.replacement) == (made.metadata, made.replacement)
        assert decoded == []

    async def test_an_answer_with_tensors_has_them_all_the_same(self) -> None:
        (made,) = await load(make_pipeline(), image(RED))

        (item,) = await load(make_pipeline(encoder_cache=Known(made.mm_hash)), image(RED))

        assert not item.encoded
        assert item.kwargs is not None

    async def test_tensors_nobody_wants_are_neither_made_nor_stored(
        self, decoded: list[int]
    ) -> None:
        blobs = CountingBlobs()

        (item,) = await load(make_pipeline(blobs=blobs), image(RED), want_tensors=False)

        assert item.kwargs is None
        assert len(item.replacement) == 4
        assert (decoded, blobs.puts, blobs.names) == ([], 0, [])

    @pytest.mark.parametrize("other", [{"tenant": "b"}, {"cache_salt": "s"}])
    async def test_another_owners_embedding_does_not_count(self, other: dict[str, str]) -> None:
        (made,) = await load(make_pipeline(), image(RED))
        pipeline = make_pipeline(encoder_cache=Known(made.mm_hash))

        (item,) = await load(pipeline, image(RED), skip_encoded=True, **other)
        again = make_pipeline(encoder_cache=Known(item.entry))
        (same,) = await load(again, image(RED), skip_encoded=True, **other)

        assert not item.encoded
        assert same.encoded


class TestUuids:
    async def test_a_known_uuid_stands_for_its_picture(self) -> None:
        pipeline = make_pipeline()
        (sent,) = await load(pipeline, image(BLUE, "x/../y"))

        (named,) = await load(pipeline, image(None, "x/../y"))

        assert named == sent
        assert named.mm_hash == "x/../y"

    async def test_an_unknown_uuid_is_a_miss(self) -> None:
        error = await refusal(image(None, "never seen"))

        assert (error.status, error.type, error.param) == (400, "BadRequestError", None)
        assert error.message == "Cache miss for image at index 0 but data is not provided."

    async def test_a_uuid_alone_is_no_reference_to_a_picture_of_the_same_request(self) -> None:
        pipeline = make_pipeline()
        parts = image(BLUE, "x"), image(None, "x")

        error = await refusal(*parts, pipeline=pipeline)
        await load(pipeline, image(BLUE, "x"))
        first, second = await load(pipeline, *parts)

        assert error.message == "Cache miss for image at index 1 but data is not provided."
        assert first == second

    async def test_one_tenants_uuid_says_nothing_to_another(self) -> None:
        pipeline = make_pipeline()
        await load(pipeline, image(RED, "x"), tenant="a")

        error = await refusal(image(None, "x"), pipeline=pipeline, tenant="b")

        assert "Cache miss" in error.message

    async def test_in_one_request_the_first_picture_of_a_uuid_stands_for_all(self) -> None:
        """As in vLLM: the caller promised that the uuid names one picture."""
        first, second = await load(make_pipeline(), image(RED, "x"), image(BLUE, "x"))

        assert first == second
        assert len(first.replacement) == 4

    @pytest.mark.parametrize("want_tensors", [True, False])
    async def test_a_uuid_that_comes_again_stands_for_what_is_sent_now(
        self, want_tensors: bool
    ) -> None:
        pipeline = make_pipeline()
        wanted = {"want_tensors": want_tensors}

        (red,) = await load(pipeline, image(RED, "x"), **wanted)
        (blue,) = await load(pipeline, image(BLUE, "x"), **wanted)
        (named,) = await load(pipeline, image(None, "x"), **wanted)

        assert red.mm_hash == blue.mm_hash == "x"
        assert (len(red.replacement), len(blue.replacement)) == (4, 9)
        assert named == blue

    async def test_a_uuid_alone_beside_other_bytes_means_those(self) -> None:
        pipeline = make_pipeline()
        await load(pipeline, image(RED, "x"))

        first, second = await load(pipeline, image(None, "x"), image(BLUE, "x"))

        assert first == second
        assert len(first.replacement) == 9

    async def test_a_salt_has_uuids_of_its_own(self) -> None:
        pipeline = make_pipeline()
        await load(pipeline, image(RED, "x"), cache_salt="a")

        for salt in (None, "", "b"):
            error = await refusal(image(None, "x"), pipeline=pipeline, cache_salt=salt)
            assert "Cache miss" in error.message
        (named,) = await load(pipeline, image(None, "x"), cache_salt="a")
        assert len(named.replacement) == 4

    async def test_a_uuid_cannot_take_the_place_of_another_picture(self) -> None:
        pipeline = make_pipeline()
        (plain,) = await load(make_pipeline(), image(RED))

        (named,) = await load(pipeline, image(BLUE, plain.mm_hash))
        (later,) = await load(pipeline, image(RED))

        assert named.mm_hash == later.mm_hash == plain.mm_hash
        assert later == plain
        assert named.entry not in ("", later.mm_hash)

    async def test_a_broken_picture_leaves_a_uuid_what_it_was(self) -> None:
        pipeline = make_pipeline()
        broken = data_url(png(56, 84)[:-60])
        (red,) = await load(pipeline, image(RED, "x"))

        await refusal(image(broken, "x"), pipeline=pipeline)
        (named,) = await load(pipeline, image(None, "x"))

        assert named == red

    async def test_the_same_picture_is_one_whatever_it_is_called(self, decoded: list[int]) -> None:
        pipeline = make_pipeline()

        items = [
            (await load(pipeline, image(RED, uuid), cache_salt=salt))[0]
            for uuid in (None, "x", "y")
            for salt in (None, "a")
        ]

        assert len({item.kwargs.digest for item in items}) == 1
        assert len(decoded) == 1

    async def test_a_uuid_of_a_picture_is_none_of_a_video(self) -> None:
        pipeline = make_pipeline()
        await load(pipeline, image(RED, "x"))

        error = await refusal(video(None, "x"), pipeline=pipeline)

        assert "Cache miss for video" in error.message

    async def test_a_uuid_is_known_without_tensors_where_none_are_wanted(self) -> None:
        pipeline = make_pipeline()
        await load(pipeline, image(BLUE, "x"), want_tensors=False)

        (item,) = await load(pipeline, image(None, "x"), want_tensors=False)

        assert len(item.replacement) == 9
        assert "Cache miss" in (await refusal(image(None, "x"), pipeline=pipeline)).message

    async def test_neither_data_nor_uuid_is_refused(self) -> None:
        error = await refusal(image(""))

        assert error.param == "multi_modal_uuids"
        assert "multi_modal_data['image'][0] is empty" in error.message


class TestRefusals:
    async def test_options_of_a_request_need_the_operators_trust(self) -> None:
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            error = await refusal(image(RED), **{name: {"image": {}}})

            assert (error.status, error.param) == (400, name)
            assert "--trust-request-mm-kwargs" in error.message

    async def test_empty_options_need_no_trust(self) -> None:
        assert await load(make_pipeline(), image(RED), mm_processor_kwargs={}, media_io_kwargs={})

    async def test_too_many_pictures_are_refused_before_they_are_decoded(
        self, decoded: list[int]
    ) -> None:
        pipeline = make_pipeline(model={"limit_mm_per_prompt": {"image": 2}})

        error = await refusal(*[image(RED)] * 3, pipeline=pipeline)

        assert (error.status, error.param) == (400, "image")
        assert "At most 2 image(s)" in error.message
        assert decoded == []

    async def test_a_modality_the_model_lacks_has_the_limit_0(self) -> None:
        pipeline = make_pipeline(folder=LLAVA)

        assert pipeline.limits == {"image": 999, "video": 0, "audio": 0}
        assert (await refusal(video("x"), pipeline=pipeline)).param == "video"

    async def test_one_bad_picture_of_several_is_named(self) -> None:
        error = await refusal(image(RED), image(data_url(b"no picture")))

        assert error.message.startswith("image 2 of 2: Failed to load image")

    async def test_decoded_media_of_a_request_share_a_budget(self) -> None:
        limits = MediaLimits(max_request_decode_bytes=3 * 64 * 48 * 4)
        pipeline = make_pipeline(limits=limits)

        await load(pipeline, image(RED), image(GREEN), image(RED))
        error = await refusal(*[image(RED)] * 4, pipeline=pipeline)
        assert "per request" in error.message

    async def test_an_extreme_ratio_is_refused(self) -> None:
        error = await refusal(image(data_url(png(804, 4))))

        assert error.status == 400
        assert "aspect ratio" in error.message

    async def test_a_broken_picture_with_a_good_header_is_refused(self) -> None:
        data = encoded(noise(300, 300), "JPEG")

        error = await refusal(image(data_url(data[: len(data) // 2])))

        assert "Failed to load image" in error.message


class TestOrderOfRefusals:
    """As in vLLM, where several things are wrong: what cannot be read in the order of the parts,
    then what was not sent, then what the processor does not take."""

    NO_PICTURE = image("data:image/png;base64,AAAA")
    CUT = image(data_url(encoded(noise(300, 300), "JPEG")[:5000]))
    NOWHERE = image("https:///a")
    MISSING = image("")
    TOO_LONG = image(data_url(png(804, 4)))

    @pytest.mark.parametrize("broken", [NO_PICTURE, CUT])
    async def test_a_broken_picture_is_told_before_a_missing_one(self, broken: MediaPart) -> None:
        for parts in ((self.MISSING, broken), (broken, self.MISSING)):
            assert "Failed to load image" in (await refusal(*parts)).message

    async def test_what_cannot_be_fetched_is_told_before_a_missing_one(self) -> None:
        for parts in ((self.MISSING, self.NOWHERE), (self.NOWHERE, self.MISSING)):
            assert (await refusal(*parts)).status == 422

    @pytest.mark.parametrize("broken", [NO_PICTURE, CUT])
    async def test_what_cannot_be_read_is_told_by_its_place(self, broken: MediaPart) -> None:
        assert (await refusal(broken, self.NOWHERE)).status == 400
        assert (await refusal(self.NOWHERE, broken)).status == 422

    async def test_what_cannot_be_read_is_told_modality_by_modality(self) -> None:
        no_video = video("data:video/mp4;base64,AAAA")

        assert (await refusal(image(RED), no_video, self.NOWHERE)).status == 422
        assert (await refusal(no_video, image(RED), self.NOWHERE)).status == 400

    @pytest.mark.parametrize("other", [MISSING, NOWHERE, NO_PICTURE])
    async def test_an_extreme_ratio_is_told_last(self, other: MediaPart) -> None:
        for parts in ((other, self.TOO_LONG), (self.TOO_LONG, other)):
            assert "aspect ratio" not in (await refusal(*parts)).message

    async def test_bad_options_are_told_last(self) -> None:
        options = {"mm_processor_kwargs": {"min_pixels": "x"}}

        for other, status, param in (
            (self.MISSING, 400, "multi_modal_uuids"),
            (self.NOWHERE, 422, "image_url"),
        ):
            for parts in ((other, image(RED)), (image(RED), other)):
                pipeline = make_pipeline(render={"trust_request_mm_kwargs": True})
                error = await refusal(*parts, pipeline=pipeline, **options)
                await pipeline.close()
                assert (error.status, error.param) == (status, param)

    async def test_a_uuid_excuses_no_extreme_ratio_where_it_is_new(self) -> None:
        long = image(self.TOO_LONG.source, "x")

        for parts in ((image(RED, "x"), long), (long, image(RED, "x"))):
            assert "aspect ratio" in (await refusal(*parts)).message

    async def test_a_known_uuid_excuses_no_extreme_ratio_either(self) -> None:
        pipeline = make_pipeline()
        await load(pipeline, image(RED, "x"))

        error = await refusal(image(self.TOO_LONG.source, "x"), pipeline=pipeline)

        assert "aspect ratio" in error.message


class TestOptions:
    TRUSTING = {"render": {"trust_request_mm_kwargs": True}}  # noqa: RUF012

    async def test_fewer_pixels_are_fewer_tokens_and_another_hash(self) -> None:
        pipeline = make_pipeline(**self.TRUSTING)
        url = data_url(png(320, 240))

        (plain,) = await load(pipeline, image(url))
        (small,) = await load(pipeline, image(url), mm_processor_kwargs={"max_pixels": 16384})

        assert len(small.replacement) < len(plain.replacement)
        assert small.mm_hash != plain.mm_hash

    async def test_unknown_options_change_the_hash_only(self) -> None:
        blobs = MemoryBlobs()
        pipeline = make_pipeline(**self.TRUSTING, blobs=blobs)

        (plain,) = await load(pipeline, image(RED))
        (odd,) = await load(pipeline, image(RED), mm_processor_kwargs={"surprise": 1})

        assert odd.mm_hash != plain.mm_hash
        assert isinstance(odd.kwargs, BlobRef)
        assert isinstance(plain.kwargs, BlobRef)
        assert await blobs.get(odd.kwargs) == await blobs.get(plain.kwargs)

    @pytest.mark.parametrize("flag", ["do_rescale", "do_normalize"])
    async def test_a_flag_that_is_null_is_off(self, flag: str) -> None:
        blobs = MemoryBlobs()
        pipeline = make_pipeline(**self.TRUSTING, blobs=blobs)

        contents = []
        for value in (None, False):
            options = {"images_kwargs": {flag: value}}
            (item,) = await load(pipeline, image(RED), mm_processor_kwargs=options)
            assert isinstance(item.kwargs, BlobRef)
            contents.append(await blobs.get(item.kwargs))

        assert contents[0] == contents[1]

    @pytest.mark.parametrize(
        "options",
        [
            {"min_pixels": "x"}, {"max_pixels": 0}, {"size": 5}, {"size": {"height": 3}},
            {"images_kwargs": 5}, {"images_kwargs": {"surprise": 1}}, {"images": []},
            {"videos_kwargs": {"size": 5}}, {"videos_kwargs": {"max_pixels": "x"}},
            {"min_frames": "x"}, {"image_mean": [0, 0, 0]}, {"rescale_factor": 1},
            {"surprise": [[]]}, {"surprise": {"a": {}}}, {"device": "cuda"},
            {"do_resize": "yes"}, {"patch_size": 8}, {"resample": 99},
        ],
    )  # fmt: skip
    async def test_options_that_make_no_sense_are_refused(self, options: Any) -> None:
        pipeline = make_pipeline(**self.TRUSTING)

        error = await refusal(
            image(data_url(png(100, 70))), pipeline=pipeline, mm_processor_kwargs=options
        )

        assert (error.status, error.type) == (400, "BadRequestError")

    async def test_a_mode_that_nothing_is_made_of_is_refused(self) -> None:
        pipeline = make_pipeline(**self.TRUSTING)
        url = data_url(png(mode="LA"))

        error = await refusal(
            image(url), pipeline=pipeline, media_io_kwargs={"image": {"image_mode": "La"}}
        )

        assert (error.status, error.type) == (400, "BadRequestError")

    async def test_options_of_videos_do_not_disturb_pictures(self) -> None:
        pipeline = make_pipeline(**self.TRUSTING)

        options = {"videos_kwargs": {"max_pixels": 1, "fps": "x"}}
        assert await load(pipeline, image(RED), mm_processor_kwargs=options)

    async def test_the_servers_options_are_no_part_of_the_hash(self) -> None:
        smaller = make_pipeline(render={"mm_processor_kwargs": {"max_pixels": 16384}})
        url = data_url(png(320, 240))

        (plain,) = await load(make_pipeline(), image(url))
        (small,) = await load(smaller, image(url))

        assert small.mm_hash == plain.mm_hash
        assert len(small.replacement) < len(plain.replacement)


class TestVideos:
    async def test_a_video_is_written_with_its_times(self) -> None:
        blobs = MemoryBlobs()
        url = data_url(make_video(8), "video/mp4")

        (item,) = await load(make_pipeline(blobs=blobs), video(url))

        assert isinstance(item.kwargs, BlobRef)
        fields = decode_item(await blobs.get(item.kwargs))
        assert fields["timestamps"].data == [0.25, 1.5]
        assert item.metadata is not None
        assert set(decode_item(item.metadata)) == {"timestamps", "video_grid_thw"}
        assert item.embeds is not None
        tokens = list(item.replacement)
        for start, count in item.embeds:
            assert tokens[start : start + count] == [2013] * count
        assert tokens.count(2013) == sum(count for _, count in item.embeds)

    async def test_a_video_of_one_frame_is_refused(self) -> None:
        error = await refusal(video(data_url(make_video(1), "video/mp4")))

        assert "too short" in error.message

    async def test_a_video_seen_before_is_hashed_without_decoding(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from workers.models import video as decoder

        pipeline = make_pipeline()
        url = data_url(make_video(8, width=320, height=240), "video/mp4")
        first = await load(pipeline, video(url))
        monkeypatch.setattr(decoder, "decode", None)

        assert await load(pipeline, video(url)) == first

    async def test_pictures_can_be_sent_as_a_video(self) -> None:
        frames = [data_url(png(seed=s)).partition(",")[2] for s in range(4)]

        (item,) = await load(make_pipeline(), video("data:video/jpeg;base64," + ",".join(frames)))

        assert item.embeds is not None
        assert len(item.embeds) == 2


class TestEmbeddings:
    async def test_need_the_operators_flag(self) -> None:
        error = await refusal(MediaPart("image", "embeds", "image_embeds", "AAAA"))

        assert (error.status, error.param) == (400, "image_embeds")
        assert "--enable-mm-embeds" in error.message
