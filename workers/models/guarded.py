"""Pictures and videos that are decoded in processes of their own, step by step.

What a step may take is known before it starts; between two steps a request waits for its share of
the memory. Knows no fetching and no store.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from blake3 import blake3

from runtime.cores import num_cores
from schemas.refusals import bad_request
from workers.models import hashing, images, subjects
from workers.models.capture import TimeLimit
from workers.models.decoders import HEADER_BYTES, SURVEY_BYTES, WORKING_BYTES, Decoders
from workers.models.families.adapter import VideoFacts
from workers.models.data_urls import decode_base64
from workers.models.limits import MediaLimits
from workers.models.request import MediaRequest, Place
from workers.models.subjects import Subject, Unread
from workers.models.video import (
    Video,
    chosen,
    decoded_bytes,
    jpeg_parts,
    of_pictures,
    read,
)
from workers.models.video_file import Source
from workers.models.video_frames import Reading

T = TypeVar("T")


class GuardedMedia:
    """One per process; `close` it."""

    def __init__(self, limits: MediaLimits) -> None:
        count = max(num_cores(), 2)
        self._pictures = Decoders(count, limits, cpu_s=limits.max_image_decode_s, name="pictures")
        self._videos = Decoders(count, limits, cpu_s=limits.max_video_decode_s, name="videos")

    def close(self) -> None:
        self._pictures.close()
        self._videos.close()

    async def subject(self, unread: Unread, place: Place, request: MediaRequest) -> Subject:
        """Raise ApiError for what is no such medium."""
        if unread.is_jpegs:
            return await self._jpegs(unread.data, place, request)
        if place.modality == "image":
            return await self._picture(unread.data, place, request)
        return await self._video(unread.data, place, request)

    async def run(self, subject: Subject, call: Callable[[], T]) -> T:
        """`load` or `make` of a subject that is guarded."""
        decoders = self._pictures if subject.modality == "image" else self._videos
        return await decoders.run(call)

    # --- pictures

    async def _picture(self, data: bytes, place: Place, request: MediaRequest) -> Subject:
        options, decoders = request.image_options, self._pictures
        async with request.pixels.holding(HEADER_BYTES):
            header = await decoders.run(decoders.header, data, options)
        request.decode_budget.charge(header.decoded_bytes)

        def decode() -> images.Picture:
            return decoders.picture(data, options, header)

        cost = 2 * header.decoded_bytes + WORKING_BYTES
        if header.is_complete:
            return await decoders.run(
                lambda: subjects.of_image(
                    data, header, place, request, decode, is_guarded=True, cost=cost
                )
            )
        # Only decoding tells its size for sure: the pixels are kept until they are needed.
        await request.pixels.keep(cost)
        picture = await decoders.run(decode)
        request.pixels.give_back(cost - header.decoded_bytes)
        return await decoders.run(
            lambda: subjects.of_image(data, picture.header, place, request, lambda: picture)
        )

    # --- videos

    async def _video(self, data: bytes, place: Place, request: MediaRequest) -> Subject:
        """A file seen before is not decoded for its identity."""
        run, sample = self._videos.run, subjects.sampler(request)
        kwargs = request.io_kwargs.get("video", {})
        recovers = bool(kwargs.get("frame_recovery"))
        reader = _Reader(self._videos, data)
        digest = await run(lambda: blake3(data).digest())
        key = (digest, json.dumps(kwargs, sort_keys=True, default=str))

        def again() -> Video:
            source = reader.source()
            return read(reader, source, chosen(source, sample), sample, recovers=recovers)

        facts = request.seen_videos.get(key)
        if facts is not None and _nbytes(facts) >= len(data):  # the hash needs no pixels
            request.decode_budget.charge(_nbytes(facts))
            known, file, cost = facts, hashing.VideoFile(data, None), _nbytes(facts) + SURVEY_BYTES
            return await run(
                lambda: subjects.of_video(
                    file, known, place, request, again, is_guarded=True, cost=cost
                )
            )
        async with request.pixels.holding(SURVEY_BYTES):
            source = await run(reader.source)
        wanted = await run(chosen, source, sample)
        size = decoded_bytes(source, wanted)
        request.decode_budget.charge(size)
        await request.pixels.keep(size + SURVEY_BYTES)
        video = await run(lambda: read(reader, source, wanted, sample, recovers=recovers))
        request.pixels.give_back(SURVEY_BYTES)
        facts = subjects.video_facts(video)
        request.seen_videos.put(key, facts)
        return await run(
            lambda: subjects.of_video(
                hashing.VideoFile(data, video.frames), facts, place, request, lambda: video
            )
        )

    async def _jpegs(self, payload: bytes, place: Place, request: MediaRequest) -> Subject:
        """A `video/jpeg` URL: pictures in base64, with commas between them."""
        kwargs = request.io_kwargs.get("video", {})
        parts = jpeg_parts(payload.decode(), kwargs)
        limit = TimeLimit(request.limits.max_video_decode_s)
        pictures = []
        for part in parts:
            limit.check()
            pictures.append(await self._frame(part, request))
        loaded = of_pictures(pictures, kwargs)
        file = hashing.VideoFile(payload, loaded.frames)
        facts = subjects.video_facts(loaded)
        return await self._videos.run(
            lambda: subjects.of_video(file, facts, place, request, lambda: loaded)
        )

    async def _frame(self, part: str, request: MediaRequest) -> images.Picture:
        decoders, options = self._pictures, request.image_options
        data = await decoders.run(decode_base64, part)
        async with request.pixels.holding(HEADER_BYTES):
            header = await decoders.run(decoders.header, data, options)
        request.decode_budget.charge(header.decoded_bytes)
        await request.pixels.keep(2 * header.decoded_bytes)
        picture = await decoders.run(decoders.picture, data, options, header)
        if picture.mode != "RGB" or picture.image is None:
            raise bad_request("the pictures of a video must be RGB and have one size")
        return replace(picture, image=picture.image.convert("RGB"))


class _Reader:
    """See `workers.models.video.Reader`."""

    def __init__(self, decoders: Decoders, data: bytes) -> None:
        self._decoders = decoders
        self._data = data

    def source(self) -> Source:
        return self._decoders.source(self._data)

    def recounted(self, source: Source) -> Source:
        return self._decoders.recounted(self._data, source)

    def read(self, wanted: list[int], source: Source, *, recovers: bool) -> Reading:
        return self._decoders.frames(self._data, wanted, source, recovers=recovers)


def _nbytes(facts: VideoFacts) -> int:
    return facts.num_frames * facts.height * facts.width * 3
