"""`media_io_kwargs.video`: whose word counts, and what of it does."""

from typing import Any

import pytest

from schemas.errors import ApiError
from tests.models_media.builders import load, make_pipeline, video
from tests.models_media.pictures import data_url
from tests.models_media.pictures import video as make_video
from workers.models.request import merge_io_kwargs

URL = data_url(make_video(8), "video/mp4")
TRUSTING = {"trust_request_mm_kwargs": True}


async def hash_of(options: dict[str, Any] | None, **render: Any) -> str:
    pipeline = make_pipeline(render=TRUSTING | render)
    kwargs = None if options is None else {"video": options}
    (item,) = await load(pipeline, video(URL), media_io_kwargs=kwargs)
    return item.mm_hash


def test_a_client_has_no_say_in_devices() -> None:
    asked = {"device": "cuda", "hw_decoders": 9, "backend": "pynvvideocodec", "fps": 3}

    assert merge_io_kwargs({"video": {"num_frames": 9}}, {"video": asked}) == {"video": {"fps": 3}}


def test_pictures_are_read_as_the_client_says() -> None:
    asked = {"image": {"device": "x"}}

    assert merge_io_kwargs({}, asked) == asked


async def test_a_wish_for_a_gpu_decoder_changes_nothing() -> None:
    assert await hash_of({"backend": "deepstream"}) == await hash_of({})


async def test_recovery_is_part_of_an_items_name() -> None:
    names = {await hash_of(None), await hash_of({"frame_recovery": True})}

    assert len(names) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seek_mode": "exact"}, "seek_mode is not supported by the 'opencv' backend"),
        ({"timeout_sec": 1, "num_ffmpeg_threads": 2}, "num_ffmpeg_threads, timeout_sec is not"),
        ({"backend": "torchcodec"}, "opencv-compatible backend only"),
    ],
)
async def test_options_of_other_decoders_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        await hash_of(options)

    assert caught.value.status == 400
