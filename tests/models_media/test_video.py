"""Videos: which frames are taken, what is told about them, and what is refused."""

import io
import itertools
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ApiError
from tests.models_media.pictures import noise, video
from workers.models.capture import TimeLimit
from workers.models.families.qwen3_vl import spread
from workers.models.families.qwen_sizes import float32_steps
from workers.models.images import Header, Picture
from workers.models.limits import Budget, MediaLimits
from workers.models.video import decode, jpeg_parts, of_pictures, uniform
from workers.models.video_file import Source, read_source

LIMITS = MediaLimits()


def budget(size: int = 10**9) -> Budget:
    return Budget(size, "Decoded media")


def every(source: Source) -> list[int]:
    return list(range(source.total_frames))


def remuxed(data: bytes, *, shift: int = 0, rotation: int = 0) -> bytes:
    """The same packets in a new MP4: shifted before 0 (hidden by an edit list), or turned."""
    out = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(out, "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        if rotation:
            stream.set_display_rotation(rotation)
        tick = source.streams.video[0].duration // source.streams.video[0].frames
        for packet in source.demux(video=0):
            if packet.dts is None:
                continue
            packet.stream = stream
            packet.pts -= shift * tick
            packet.dts -= shift * tick
            target.mux(packet)
    return out.getvalue()


class TestFacts:
    def test_metadata_stand_in_the_order_they_are_hashed_in(self) -> None:
        got = decode(video(8), lambda _: [0, 7, 3, 3], LIMITS, budget())

        assert list(got.metadata.items()) == [
            ("total_num_frames", 8), ("fps", 4.0), ("duration", 2.0), ("video_backend", "opencv"),
            ("frames_indices", [0, 3, 7]), ("do_sample_frames", False),
        ]  # fmt: skip
        assert got.frames.shape == (3, 48, 64, 3)

    def test_all_frames_taken_is_told(self) -> None:
        assert decode(video(3), every, LIMITS, budget()).metadata["do_sample_frames"] is True

    def test_frames_are_those_of_a_plain_decode(self) -> None:
        data = video(6)
        with av.open(io.BytesIO(data)) as container:
            plain = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]

        got = decode(data, lambda _: [1, 4], LIMITS, budget())

        assert (got.frames == np.stack([plain[1], plain[4]])).all()

    def test_frames_hidden_by_an_edit_list_do_not_count(self) -> None:
        data = video(12)

        assert read_source(data, LIMITS, TimeLimit(10)).total_frames == 12
        assert read_source(remuxed(data, shift=5), LIMITS, TimeLimit(10)).total_frames == 7

    def test_frames_are_turned_upright(self) -> None:
        data = video(2)
        plain = decode(data, every, LIMITS, budget()).frames

        turned = decode(remuxed(data, rotation=90), every, LIMITS, budget()).frames

        assert turned.shape == (2, 64, 48, 3)
        assert any((turned == np.rot90(plain, k, (1, 2))).all() for k in (1, 3))


def damaged(data: bytes, *lost: int) -> bytes:
    """With nothing but zeros in some packets."""
    with av.open(io.BytesIO(data)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    file = bytearray(data)
    for number in lost:
        start, size = places[number]
        file[start : start + size] = bytes(size)
    return bytes(file)


class TestDamage:
    """As OpenCV takes it: 40 frames of which about every fourth is wanted."""

    def wanted(self, source: Source) -> list[int]:
        return spread(source.total_frames, source.total_frames // 4)

    def taken(self, *lost: int, recovers: bool = False) -> tuple[int, list[int]]:
        data = damaged(video(40), *lost)
        metadata = decode(data, self.wanted, LIMITS, budget(), recovers=recovers).metadata
        return metadata["total_num_frames"], metadata["frames_indices"]

    def test_a_lost_frame_leaves_the_numbers_of_the_others(self) -> None:
        assert self.taken(13) == (40, [0, 4, 9, 17, 22, 26, 30, 35, 39])
        assert self.taken(12) == (40, [0, 4, 9, 13, 17, 22, 26, 30, 35, 39])

    def test_a_neighbour_may_stand_in_for_it(self) -> None:
        assert self.taken(13, recovers=True) == (40, [0, 4, 9, 14, 17, 22, 26, 30, 35, 39])

    def test_nothing_stands_in_for_more_than_what_lies_before_the_next_wanted_frame(self) -> None:
        gone = range(12, 18)

        assert self.taken(*gone, recovers=True) == self.taken(*gone)
        assert 13 not in self.taken(*gone)[1]

    def test_a_lost_end_is_not_counted(self) -> None:
        assert self.taken(*range(30, 40)) == (30, [0, 5, 10, 14, 19, 24, 29])

    def test_stand_ins_are_the_frames_they_are_named_after(self) -> None:
        data = video(40)
        whole = decode(data, every, LIMITS, budget()).frames

        got = decode(damaged(data, 39), lambda _: [2, 5], LIMITS, budget(), recovers=True)

        assert (got.frames == whole[[2, 5]]).all()

    def test_a_file_without_any_frame_left_is_refused(self) -> None:
        def end(source: Source) -> list[int]:
            return list(range(2, source.total_frames))

        with pytest.raises(ApiError, match="none of its frames"):
            decode(damaged(video(4), 2, 3), end, LIMITS, budget())


class TestRefusals:
    @pytest.mark.parametrize(
        "data",
        [
            b"", b"hello" * 100, video(2)[:200],
            b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:1/x.ts\n#EXT-X-ENDLIST\n",
            b"ffconcat version 1.0\nfile /etc/passwd\n",
            b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 5000 RTP/AVP 96\n",
        ],
        ids=["empty", "garbage", "cut", "playlist", "list of files", "session"],
    )  # fmt: skip
    def test_what_is_no_video_file_is_refused(self, data: bytes) -> None:
        with pytest.raises(ApiError, match="Could not open video stream") as caught:
            decode(data, every, LIMITS, budget())

        assert caught.value.status == 400

    def test_frames_larger_than_allowed_are_refused(self) -> None:
        with pytest.raises(ApiError, match="64x48"):
            decode(video(2), every, MediaLimits(max_image_pixels=3000), budget())

    def test_frames_are_paid_for_before_they_are_decoded(self) -> None:
        with pytest.raises(ApiError, match="per request"):
            decode(video(4), every, LIMITS, budget(3 * 64 * 48 * 3))

    def test_decoding_is_bounded_in_time(self) -> None:
        with pytest.raises(ApiError, match="longer than"):
            decode(video(4), every, MediaLimits(max_video_decode_s=-1), budget())

    def test_sound_without_pictures_is_refused(self) -> None:
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("aac", rate=16000)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.rate = 16000
            container.mux(stream.encode(frame))
            container.mux(stream.encode())

        with pytest.raises(ApiError, match="no video"):
            decode(file.getvalue(), every, LIMITS, budget())


class TestSampling:
    @settings(deadline=None)
    @given(total=st.integers(1, 5000), count=st.integers(1, 768))
    def test_spreading_keeps_both_ends_and_never_goes_back(self, total: int, count: int) -> None:
        got = spread(total, min(count, total))

        assert got[0] == 0
        assert len(got) == 1 or got[-1] == total - 1
        assert all(a < b for a, b in itertools.pairwise(got))

    @settings(deadline=None)
    @given(total=st.integers(1, 5000), count=st.integers(1, 768))
    def test_float_steps_stay_inside(self, total: int, count: int) -> None:
        got = float32_steps(total, min(count, total))

        assert got[0] == 0
        assert 0 <= max(got) < total
        assert all(a <= b for a, b in itertools.pairwise(got))

    @pytest.mark.parametrize(
        ("num_frames", "fps", "expected"),
        [(-1, -1, 10), (4, -1, 4), (32, -1, 10), (-1, 1, 2), (4, 1, 2), (-1, 0.1, 1)],
    )
    def test_the_fewer_of_both_wishes_count(
        self, num_frames: int, fps: float, expected: int
    ) -> None:
        assert len(uniform(Source(8, 8, 10, 4.0), num_frames, fps)) == expected


class TestPictureSequences:
    def pictures(self, count: int) -> list[Picture]:
        return [Picture(noise(8, 8, seed=s), Header(8, 8, False), "RGB") for s in range(count)]

    def test_only_as_many_as_asked_for_are_looked_at(self) -> None:
        assert jpeg_parts("a,b,c", {"num_frames": 2}) == ["a", "b"]
        assert jpeg_parts("a,b,c", {"num_frames": -1}) == ["a", "b", "c"]
        with pytest.raises(ApiError, match="greater than 0"):
            jpeg_parts("a", {"num_frames": 0})

    def test_the_caller_tells_what_a_container_would(self) -> None:
        kwargs = {"fps": 2, "total_num_frames": 60, "frames_indices": [0, 30]}

        got = of_pictures(self.pictures(2), kwargs)

        assert got.metadata["duration"] == 30.0
        assert got.metadata["video_backend"] == "jpeg_sequence"

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"frames_indices": [1]}, {"frames_indices": "x"}, {"total_num_frames": 1},
            {"total_num_frames": 2.5}, {"fps": "x"}, {"duration": "x"},
        ],
    )  # fmt: skip
    def test_contradictions_are_refused(self, kwargs: dict[str, Any]) -> None:
        with pytest.raises(ApiError):
            of_pictures(self.pictures(2), kwargs)

    def test_pictures_of_different_sizes_are_no_video(self) -> None:
        other = Picture(noise(9, 9), Header(9, 9, False), "RGB")

        with pytest.raises(ApiError, match="one size"):
            of_pictures([*self.pictures(1), other], {})
