"""Bounds on media: where they come from, and budgets that several threads draw on."""

import threading

import pytest

from runtime.errors import SettingsError
from schemas.errors import ApiError, FailureCode
from workers.models.limits import Budget, MediaLimits


def test_variables_replace_the_defaults() -> None:
    limits = MediaLimits.from_environ(
        {
            "VLLM_MAX_IMAGE_PIXELS": "1000",
            "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": "2",
            "VLLM_IMAGE_FETCH_TIMEOUT": "1.5",
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
            "SOMETHING_ELSE": "x",
        }
    )

    assert limits == MediaLimits(
        max_image_pixels=1000,
        max_download_bytes=2 * 1024 * 1024,
        image_fetch_timeout_s=1.5,
        allow_redirects=False,
    )


def test_no_variables_are_the_defaults() -> None:
    assert MediaLimits.from_environ({}) == MediaLimits()


def test_a_variable_that_is_no_number_is_a_start_up_error() -> None:
    with pytest.raises(SettingsError, match="VLLM_MAX_IMAGE_PIXELS='many'"):
        MediaLimits.from_environ({"VLLM_MAX_IMAGE_PIXELS": "many"})


def test_a_budget_refuses_what_would_exceed_it_and_keeps_the_rest() -> None:
    budget = Budget(10, "Decoded media")
    budget.charge(6)

    with pytest.raises(ApiError, match="exceeds 10 bytes per request: at least 11"):
        budget.charge(5)
    budget.charge(4)


def test_a_budget_of_downloads_is_an_unprocessable_entity() -> None:
    with pytest.raises(ApiError) as caught:
        Budget(1, "Media downloads", status=422).charge(2)

    assert caught.value.status == 422
    assert caught.value.code is FailureCode.UNPROCESSABLE_MEDIA


def test_threads_share_a_budget() -> None:
    budget = Budget(1000, "Decoded media")
    refused: list[int] = []

    def draw() -> None:
        for _ in range(300):
            try:
                budget.charge(1)
            except ApiError:
                refused.append(1)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 200


def test_no_limit_is_no_limit() -> None:
    Budget.unlimited().charge(2**62)
