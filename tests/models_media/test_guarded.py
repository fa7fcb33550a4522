"""What is decoded in processes of its own: the same pixels, and ends when it takes too much."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runtime.shares import SharedBytes
from schemas.errors import ApiError
from schemas.mm_item import decode_item
from tests.hostile.media_files import (
    jpeg_of_scans,
    png_of_chunks,
    qoi,
    tiff_of_tags,
    timed_video,
    with_exif,
)
from tests.models_media.builders import image, load, make_pipeline
from tests.models_media.builders import video as video_part
from tests.models_media.pictures import data_url, encoded, noise, png, video
from workers.models import images
from workers.models.decoders import Decoders
from workers.models.images import ImageOptions, as_rgb
from workers.models.limits import MediaLimits
from workers.models.pixels import of_image, of_planes, resized_planes
from workers.models.plain_images import is_plain
from workers.models.video import FileReader
from workers.models.video_file import Source

LIMITS = MediaLimits()
OPTIONS = ImageOptions()


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    made = Decoders(1, LIMITS, cpu_s=20, name="test")
    yield made
    made.close()


def rgb(picture: images.Picture) -> np.ndarray[Any, Any]:
    return np.asarray(as_rgb(picture).convert("RGB"))


def _grey16() -> bytes:
    return encoded(Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64)))


def _several() -> bytes:
    return encoded(noise(), "MPO", save_all=True, append_images=[noise()])


def _transparent_palette() -> bytes:
    return encoded(noise(70, 50).quantize(8), transparency=3)


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(noise(70, 50), "JPEG", exif=exif)


FILES: dict[str, Callable[[], bytes]] = {
    "GIF": lambda: encoded(noise(70, 50), "GIF"),
    "TIFF, CMYK": lambda: encoded(noise(70, 50, mode="CMYK"), "TIFF"),
    "JPEG, progressive": lambda: encoded(noise(70, 50), "JPEG", progressive=True),
    "JPEG, turned": _turned,
    "PNG, palette": _transparent_palette,
    "PNG, grey with alpha": lambda: encoded(noise(70, 50, mode="LA")),
    "PNG, 16 bits": _grey16,
    "PNG, several bands": lambda: encoded(noise(1500, 1600, mode="RGBA")),
    "JPEG 2000": lambda: encoded(noise(70, 50), "JPEG2000"),
    "AVIF": lambda: encoded(noise(70, 50), "AVIF"),
    "ICO": lambda: encoded(noise(64, 64, mode="RGBA"), "ICO"),
    "BMP": lambda: encoded(noise(70, 50), "BMP"),
    "QOI": lambda: qoi(70, 50),
}  # fmt: skip


class TestPictures:
    @pytest.mark.parametrize("name", FILES)
    def test_have_the_pixels_that_a_thread_of_ours_would_give(
        self, name: str, decoders: Decoders
    ) -> None:
        data = FILES[name]()
        here = images.decode(data, OPTIONS, LIMITS)

        header = decoders.header(data, OPTIONS)
        there = decoders.picture(data, OPTIONS, header)

        assert header == images.read_header(data, OPTIONS, LIMITS)
        assert (there.header, there.mode) == (here.header, here.mode)
        assert (rgb(there) == rgb(here)).all()

    def test_become_the_same_tensors(self, decoders: Decoders) -> None:
        data = png(300, 200)
        header = decoders.header(data, OPTIONS)
        there = as_rgb(decoders.picture(data, OPTIONS, header))
        here = as_rgb(images.decode(data, OPTIONS, LIMITS))

        assert there.mode == "RGBX"
        assert (of_image(there) == of_image(here)).all()
        assert (of_planes(there) == of_planes(here)).all()
        assert (resized_planes(there, 64, 96) == resized_planes(here, 64, 96)).all()

    @pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"<svg/>", png()[:90]])
    def test_that_are_broken_are_refused_alike(self, data: bytes, decoders: Decoders) -> None:
        with pytest.raises(ApiError) as here:
            images.decode(data, OPTIONS, LIMITS)
        with pytest.raises(ApiError) as there:
            decoders.picture(data, OPTIONS, images.Header(64, 48, is_converted=False))

        assert there.value.message == here.value.message


class TestEnds:
    def test_what_takes_too_long_and_the_next_is_served(self) -> None:
        decoders = Decoders(1, LIMITS, cpu_s=0, name="hasty")
        try:
            with pytest.raises(ApiError, match="takes longer than 0 s"):
                decoders.picture(qoi(2000, 2000), OPTIONS, images.Header(2000, 2000, False))
            assert decoders.header(png(), OPTIONS).width == 64
        finally:
            decoders.close()

    def test_what_takes_too_much_memory(self) -> None:
        decoders = Decoders(1, MediaLimits(max_decoder_bytes=2**20), cpu_s=20, name="small")
        try:
            data = png(3000, 3000, mode="L")
            with pytest.raises(ApiError, match="memory"):
                decoders.picture(data, OPTIONS, decoders.header(data, OPTIONS))
        finally:
            decoders.close()

    def test_metadata_that_names_the_same_bytes_over_and_over(self, decoders: Decoders) -> None:
        with pytest.raises(ApiError):
            decoders.header(tiff_of_tags(60_000, 8 * 2**20), OPTIONS)

    async def test_what_nobody_waits_for(self) -> None:
        decoders = Decoders(1, LIMITS, cpu_s=60, name="left")
        header = images.Header(4000, 4000, is_converted=False)
        try:
            await decoders.run(decoders.header, png(), OPTIONS)  # it is there
            call = asyncio.ensure_future(
                decoders.run(decoders.picture, qoi(4000, 4000), OPTIONS, header)
            )
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(20):
                assert (await decoders.run(decoders.header, png(), OPTIONS)).width == 64
        finally:
            decoders.close()

    def test_too_many_scans_before_one_is_decoded(self, decoders: Decoders) -> None:
        began = time.process_time()
        with pytest.raises(ApiError, match="scans"):
            decoders.header(jpeg_of_scans(4000, 2000), OPTIONS)
        assert time.process_time() - began < 5


class TestPlainFiles:
    @pytest.mark.parametrize(
        "data",
        [
            encoded(noise(), "JPEG"), encoded(noise(), "JPEG", progressive=True), png(),
            encoded(noise(mode="RGBA")), encoded(noise(), "WEBP"),
            encoded(noise(), "WEBP", lossless=True),
            _turned(), with_exif(20),
        ],
    )  # fmt: skip
    def test_are_those_that_people_send(self, data: bytes) -> None:
        assert is_plain(data)

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"\xff\xd8\xff", png()[:40], encoded(noise(), "GIF"), qoi(8, 8),
            encoded(noise(), "JPEG2000"), png(8000, 3000, mode="1"), jpeg_of_scans(64, 40_000),
            with_exif(5000), png_of_chunks(20_000),
            _several(),
            encoded(noise(), "WEBP", exif=Image.Exif()), encoded(noise(), "PNG", exif=b"Exif\0\0"),
        ],
    )  # fmt: skip
    def test_are_none_whose_header_does_not_bound_the_work(self, data: bytes) -> None:
        assert not is_plain(data)


class TestVideos:
    def test_have_the_frames_that_a_thread_of_ours_would_give(self, decoders: Decoders) -> None:
        data = video(12)
        here = FileReader(data, LIMITS)
        source = decoders.source(data)
        there = decoders.frames(data, [0, 5, 11], source, recovers=False)
        expected = here.read([0, 5, 11], source, recovers=False)

        assert source == here.source()
        assert (there.frames == expected.frames).all()
        assert (there.valid, there.times) == (expected.valid, expected.times)

    def test_that_claim_years_end_with_their_last_frame(self) -> None:
        source = Source(64, 48, 10**10, 4.0)

        reading = FileReader(video(8), LIMITS).read([0, 7, 10**10 - 1], source, recovers=False)

        assert reading.valid == [0, 7]


class TestVariableRate:
    TIMES = (0, 40, 80, 5_000, 5_040, 12_000, 12_040, 20_000)

    def test_frames_are_labelled_with_the_time_they_are_shown_at(self, decoders: Decoders) -> None:
        data = timed_video(self.TIMES)
        source = decoders.source(data)

        reading = decoders.frames(data, [0, 3, 5], source, recovers=False)

        assert reading.times == pytest.approx({0: 0.0, 3: 5.0, 5: 12.0})

    def test_a_constant_rate_needs_no_times(self, decoders: Decoders) -> None:
        data = timed_video(range(0, 8_000, 40))
        source = decoders.source(data)

        assert decoders.frames(data, [0, 99, 199], source, recovers=False).times == {}

    async def test_the_prompt_tells_them(self, pipeline: Any) -> None:
        url = data_url(timed_video(self.TIMES, format="mp4"), "video/mp4")

        (item,) = await load(pipeline, video_part(url))

        metadata = decode_item(item.metadata)
        pairs = zip(self.TIMES[::2], self.TIMES[1::2], strict=True)
        middles = [(first + second) / 2000 for first, second in pairs]
        assert metadata["timestamps"].data == pytest.approx(middles)


@pytest.fixture
async def pipeline() -> AsyncIterator[Any]:
    made = make_pipeline(limits=MediaLimits(max_image_decode_s=3))
    await made.start()
    yield made
    await made.close()


class TestNeighbours:
    async def test_plain_pictures_do_not_wait_for_odd_ones(self, pipeline: Any) -> None:
        count = 2 * (os.cpu_count() or 1) + 2
        slow = [
            asyncio.ensure_future(load(pipeline, image(data_url(qoi(2500, 2500, seed=seed)))))
            for seed in range(count)
        ]
        await asyncio.sleep(0)
        items = await load(pipeline, image(data_url(encoded(noise(), "JPEG"))))

        assert items[0].kwargs is not None
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    async def test_a_request_that_ends_gives_its_memory_back(self, pipeline: Any) -> None:
        await load(
            pipeline,
            image(data_url(encoded(noise(), "GIF"))),
            video_part(data_url(video(), "video/mp4")),
        )
        with pytest.raises(ApiError):
            await load(pipeline, image(data_url(b"GIF89a" + bytes(400_000))))

        assert (pipeline._pixels.used, pipeline._files.used) == (0, 0)


class TestSharedBytes:
    async def test_others_wait_and_the_oldest_does_not(self) -> None:
        shared = SharedBytes(100)
        first, second = shared.claim(), shared.claim()
        await first.keep(60)
        waiting = asyncio.ensure_future(second.keep(60))
        await asyncio.sleep(0)
        await first.keep(300)

        assert (shared.used, waiting.done()) == (360, False)
        first.close()
        await waiting
        assert shared.used == 60

    async def test_what_is_larger_than_all_of_it_goes_alone(self) -> None:
        shared = SharedBytes(100)
        async with asyncio.timeout(5):
            await shared.claim().keep(1000)

    async def test_who_leaves_the_queue_holds_nothing(self) -> None:
        shared = SharedBytes(100)
        first, second, third = (shared.claim() for _ in range(3))
        await first.keep(100)
        tasks = [asyncio.ensure_future(claim.keep(100)) for claim in (second, third)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        first.close()
        await tasks[1]

        assert shared.used == 100
        third.close()
        assert shared.used == 0
