"""Fetching media: what is refused, what is tried again, and what the caller is told (01 §6)."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import SettingsError
from runtime.settings import RenderSettings
from runtime.shares import SharedBytes
from schemas.errors import ApiError, FailureCode
from tests.models_media.web import Site, serving
from workers.models import data_urls, http_fetch
from workers.models.data_urls import decode_base64, decode_payload, split_data_url, unescaped
from workers.models.downloads import downloads_of
from workers.models.fetch import Fetcher
from workers.models.limits import MediaLimits
from workers.render.media import MediaPart

FAST = {"retry_delay_s": 0.01, "image_fetch_timeout_s": 2.0}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as running:
        yield running


async def fetch(
    url: str, *, domains: tuple[str, ...] = (), root: Path | None = None, **limits: Any
) -> bytes:
    bounds = MediaLimits(**{**FAST, **limits})
    settings = RenderSettings(
        allowed_media_domains=domains, allowed_local_media_path=str(root) if root else None
    )
    fetcher = Fetcher(settings, bounds)
    memory = SharedBytes(bounds.max_fetched_bytes)
    try:
        part = MediaPart("image", "url", "image_url", url)
        return await fetcher.fetch(part, downloads_of(bounds, memory.claim()))
    finally:
        await fetcher.close()


async def refusal(url: str, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await fetch(url, **options)
    return caught.value


class TestPlacesThatAreNotPublic:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1", "localhost", "[::1]", "0x7f000001", "2130706433", "127.1", "0177.0.0.1",
            "[::ffff:127.0.0.1]", "169.254.169.254", "10.0.0.1", "0.0.0.0", "[fe80::1]",
        ],
    )  # fmt: skip
    async def test_are_never_connected_to(self, site: Site, host: str) -> None:
        site.files["/a.png"] = b"secret"

        error = await refusal(site.url("/a.png", host), max_fetch_attempts=1)

        assert error.status in (400, 422)
        assert not site.hits

    async def test_stay_closed_when_a_name_leads_there(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name is public at first sight and private when it is connected to."""
        site.files["/a.png"] = b"secret"
        answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", site.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)

        error = await refusal(site.url("/a.png", "public.example"))

        assert error.status == 400
        assert "not public" in error.message
        assert not site.hits

    async def test_stay_closed_behind_a_redirect(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.redirects["/a.png"] = "http://169.254.169.254/latest/meta-data"

        error = await refusal(site.url("/a.png"), domains=("127.0.0.1",))

        assert error.status == 400
        assert "allowed domains" in error.message

    async def test_are_open_when_the_operator_names_them(self, site: Site) -> None:
        site.files["/a.png"] = b"picture"

        assert await fetch(site.url("/a.png"), domains=("127.0.0.1",)) == b"picture"

    async def test_no_proxy_of_the_environment_connects_instead(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", site.url(""))

        await refusal("http://127.0.0.1:1/a.png", max_fetch_attempts=1)

        assert not site.hits


class TestNamedDomains:
    async def test_exclude_all_others(self, site: Site) -> None:
        error = await refusal(site.url("/a.png", "localhost"), domains=("127.0.0.1",))

        assert (error.status, error.type, error.param) == (400, "BadRequestError", None)
        assert "Input URL domain: localhost" in error.message

    @pytest.mark.parametrize(
        "url",
        [
            "http://good.example@127.0.0.1/",
            "http://127.0.0.1\\@good.example/",
            "http://good.example:80@127.0.0.1/",
        ],
    )
    async def test_are_not_fooled_by_user_names(self, url: str) -> None:
        error = await refusal(url, domains=("good.example",), max_fetch_attempts=1)

        assert error.status in (400, 422)


class TestAnswersOfTheServer:
    async def test_not_found_is_the_callers_fault(self, site: Site) -> None:
        error = await refusal(site.url("/missing"), domains=("127.0.0.1",))

        assert (error.status, error.type) == (422, "UnprocessableEntityError")
        assert error.param == "image_url"
        assert "HTTP 404 error" in error.message
        assert site.hits["/missing"] == 1

    async def test_a_failing_server_is_asked_again(self, site: Site) -> None:
        site.files["/a"] = b"late"
        site.failures["/a"] = [503, 500]

        assert await fetch(site.url("/a"), domains=("127.0.0.1",)) == b"late"
        assert site.hits["/a"] == 3

    async def test_a_server_that_fails_for_good_is_a_4xx(self, site: Site) -> None:
        site.failures["/a"] = [500] * 9

        error = await refusal(site.url("/a"), domains=("127.0.0.1",))

        assert error.status == 422
        assert site.hits["/a"] == 3

    async def test_silence_is_a_gateway_timeout(self, site: Site) -> None:
        site.slow.add("/a")

        error = await refusal(
            site.url("/a"), domains=("127.0.0.1",), image_fetch_timeout_s=0.05, max_fetch_attempts=2
        )

        assert (error.status, error.code) == (504, FailureCode.UPSTREAM_TIMEOUT)
        assert site.hits["/a"] == 2

    async def test_redirects_are_followed_a_while(self, site: Site) -> None:
        site.redirects["/a"] = "/b"
        site.files["/b"] = b"there"
        site.redirects["/loop"] = "/loop"

        assert await fetch(site.url("/a"), domains=("127.0.0.1",)) == b"there"
        error = await refusal(site.url("/loop"), domains=("127.0.0.1",))
        assert error.status == 422
        assert "redirects" in error.message

    async def test_redirects_can_be_switched_off(self, site: Site) -> None:
        site.redirects["/a"] = "/b"

        error = await refusal(site.url("/a"), domains=("127.0.0.1",), allow_redirects=False)

        assert error.status == 422
        assert not site.hits["/b"]

    async def test_nobody_there_is_a_4xx(self) -> None:
        error = await refusal("http://127.0.0.1:1/a", domains=("127.0.0.1",), max_fetch_attempts=2)

        assert (error.status, error.param) == (422, "image_url")
        assert "cannot connect" in error.message


class TestSize:
    async def test_an_endless_body_is_cut_off(self, site: Site) -> None:
        site.endless.add("/a")

        error = await refusal(site.url("/a"), domains=("127.0.0.1",), max_download_bytes=1_000_000)

        assert error.status == 422
        assert "1000000 bytes" in error.message

    async def test_an_announced_size_is_believed_before_reading(self, site: Site) -> None:
        site.files["/a"] = b"x" * 2000

        error = await refusal(site.url("/a"), domains=("127.0.0.1",), max_download_bytes=1000)

        assert error.status == 422

    async def test_all_downloads_of_a_request_share_a_budget(self, site: Site) -> None:
        site.files["/a"] = b"x" * 2000

        error = await refusal(
            site.url("/a"), domains=("127.0.0.1",), max_request_download_bytes=1500
        )

        assert error.status == 422
        assert "per request" in error.message


class TestUrls:
    @pytest.mark.parametrize("url", ["gopher://host/", "not a url", "ftp://host/x", "//host/x"])
    async def test_of_other_schemes_are_refused(self, url: str) -> None:
        error = await refusal(url)

        assert (error.status, error.type, error.param) == (400, "BadRequestError", None)

    @pytest.mark.parametrize("url", ["http://", "http:", "https:///a", "http://:80/", "http://@/"])
    async def test_that_name_no_host_are_unprocessable(self, url: str) -> None:
        error = await refusal(url, max_fetch_attempts=1)

        assert (error.status, error.param) == (422, "image_url")

    @pytest.mark.parametrize(
        "url", ["http://[::1", "http://host:99999/", "http://host:x/", "http://a b/"]
    )
    async def test_that_are_malformed_are_refused(self, url: str) -> None:
        error = await refusal(url, max_fetch_attempts=1)

        assert (error.status, error.param) == (400, None)

    def test_data_urls_need_a_comma_and_base64(self) -> None:
        with pytest.raises(ApiError, match="missing ',' separator"):
            split_data_url("data:image/png;base64")
        with pytest.raises(ApiError, match="Only base64"):
            split_data_url("data:image/png,hello")

    @pytest.mark.parametrize("text", ["@@@not base64@@@", "AAA", "AA A", "AAAA%", "AA%zzA"])
    def test_what_is_not_base64_is_refused(self, text: str) -> None:
        with pytest.raises(ApiError):
            decode_base64(text)

    @pytest.mark.parametrize(
        "text", ["/+8=", "/+8%3D", "%2F%2b8=", "/+\r\n8=", " /+ 8=\n", "%2F+8%0A="]
    )
    def test_base64_may_be_folded_and_escaped(self, text: str) -> None:
        assert decode_base64(text) == b"\xff\xef"

    @pytest.mark.parametrize(
        "url",
        [
            "data:image/png;base64,/+8=", "data:image/png;BASE64,/+8=", "data:;Base64,/+8=",
            "data:image/png;name=a.png; base64,/+8=", "data:image/png,%FF%EF", "data:,%ff%ef",
            "data:image/png;charset=x,%ff%ef",
        ],
    )  # fmt: skip
    def test_a_data_url_is_read_as_the_standard_says(self, url: str) -> None:
        _, payload, is_base64 = split_data_url(url)

        assert decode_payload(payload, is_base64) == b"\xff\xef"

    @given(st.binary(max_size=200), st.integers(3, 20), st.data())
    def test_escapes_give_the_bytes_wherever_a_long_text_is_cut(
        self, value: bytes, piece: int, data: st.DataObject
    ) -> None:
        escaped = "".join(
            f"%{byte:02x}" if byte >= 128 or byte == 37 or data.draw(st.booleans()) else chr(byte)
            for byte in value
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data_urls, "_PIECE", piece)
            assert unescaped(escaped) == value

    @pytest.mark.parametrize("payload", ["%8", "%", "%zz", "a%4"])
    def test_broken_escapes_are_refused(self, payload: str) -> None:
        with pytest.raises(ApiError, match="hexadecimal"):
            decode_payload(payload, is_base64=False)

    def test_a_data_url_tells_its_type_without_parameters(self) -> None:
        assert split_data_url("data:image/png;x=y;base64,AAAA") == ("image/png", "AAAA", True)


class TestManyAtOnce:
    """One pool of connections and of memory for all requests of a process."""

    async def test_a_silent_host_keeps_nobody_from_another(self, site: Site) -> None:
        site.slow.add("/silent")
        site.files["/a"] = b"picture"
        bounds = MediaLimits(**FAST, max_fetches=3, max_fetches_per_host=1)
        async with fetching(bounds) as fetch_one:
            silent = [asyncio.ensure_future(fetch_one(site.url("/silent"))) for _ in range(8)]
            await until(lambda: site.hits["/silent"] == 1)
            async with asyncio.timeout(1.5):
                assert await fetch_one(site.url("/a", "localhost")) == b"picture"
            assert site.hits["/silent"] == 1
            await stopped(silent)

    async def test_who_leaves_takes_the_connection_along(self, site: Site) -> None:
        site.slow.add("/silent")
        site.files["/a"] = b"picture"
        bounds = MediaLimits(**{**FAST, "image_fetch_timeout_s": 60}, max_fetches_per_host=1)
        async with fetching(bounds) as fetch_one:
            silent = [asyncio.ensure_future(fetch_one(site.url("/silent"))) for _ in range(3)]
            await until(lambda: site.hits["/silent"] == 1)
            await stopped(silent)
            async with asyncio.timeout(10):
                assert await fetch_one(site.url("/a")) == b"picture"

    async def test_endless_bodies_share_the_memory_and_give_it_back(self, site: Site) -> None:
        site.endless.add("/endless")
        mib = 2**20
        bounds = MediaLimits(
            **FAST, max_download_bytes=4 * mib, max_fetched_bytes=6 * mib, max_fetch_attempts=1
        )
        memory = SharedBytes(bounds.max_fetched_bytes)
        async with fetching(bounds, memory) as fetch_one:
            bodies = [asyncio.ensure_future(fetch_one(site.url("/endless"))) for _ in range(6)]
            most = 0
            while not all(body.done() for body in bodies):
                most = max(most, memory.used)
                await asyncio.sleep(0.001)

        assert {body.exception().status for body in bodies} == {422}  # type: ignore[union-attr]
        assert most <= 10 * mib
        assert memory.used == 0

    async def test_a_body_that_drips_is_given_up_and_not_asked_for_again(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_fetch, "_GRACE_S", 0.05)
        site.dripping.add("/drip")
        async with fetching(MediaLimits(**{**FAST, "image_fetch_timeout_s": 60})) as fetch_one:
            async with asyncio.timeout(20):
                with pytest.raises(ApiError) as caught:
                    await fetch_one(site.url("/drip"))

        assert caught.value.status == 504
        assert site.hits["/drip"] == 1


FetchOne = Callable[[str], Awaitable[bytes]]


@asynccontextmanager
async def fetching(
    bounds: MediaLimits, memory: SharedBytes | None = None
) -> AsyncIterator[FetchOne]:
    """As many requests as there are calls, in one process."""
    shared = memory or SharedBytes(bounds.max_fetched_bytes)
    trusting = RenderSettings(allowed_media_domains=("127.0.0.1", "localhost"))
    fetcher = Fetcher(trusting, bounds)

    async def fetch_one(url: str) -> bytes:
        part = MediaPart("image", "url", "image_url", url)
        claim = shared.claim()
        try:
            return await fetcher.fetch(part, downloads_of(bounds, claim))
        finally:
            claim.close()

    try:
        yield fetch_one
    finally:
        await fetcher.close()


async def until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_met():
            await asyncio.sleep(0.005)


async def stopped(tasks: list["asyncio.Future[bytes]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class TestLocalFiles:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "open").mkdir()
        (tmp_path / "open" / "a b.png").write_bytes(b"picture")
        (tmp_path / "secret.png").write_bytes(b"secret")
        return tmp_path / "open"

    async def test_are_closed_by_default(self, root: Path) -> None:
        error = await refusal((root / "a b.png").as_uri())

        assert error.status == 400
        assert "--allowed-local-media-path" in error.message

    async def test_are_read_below_the_named_folder(self, root: Path) -> None:
        assert await fetch((root / "a b.png").as_uri(), root=root) == b"picture"

    @pytest.mark.parametrize(
        "path", ["../secret.png", "%2e%2e/secret.png", "link.png", "sub/../../secret.png"]
    )
    async def test_outside_of_it_are_refused(self, root: Path, path: str) -> None:
        (root / "link.png").symlink_to(root.parent / "secret.png")
        (root / "sub").mkdir()

        error = await refusal(f"{root.as_uri()}/{path}", root=root)

        assert error.status == 400
        assert "subpath" in error.message

    async def test_that_are_missing_or_no_files_are_refused_at_once(self, root: Path) -> None:
        os.mkfifo(root / "pipe")

        for name in ("missing", "pipe", ""):
            assert (await refusal(f"{root.as_uri()}/{name}", root=root)).status == 400

    async def test_that_lead_nowhere_are_refused(self, root: Path) -> None:
        (root / "a").symlink_to(root / "b")
        (root / "b").symlink_to(root / "a")
        (root / "closed").mkdir(mode=0)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(root / "socket"))
        (root / "huge").touch()
        os.truncate(root / "huge", 2**40)
        (root / "zero").symlink_to("/dev/zero")
        names = (
            "a", "a/b.png", "x%00.png", "%00", "closed/a.png", "socket", "huge", "zero",
            "y" * 5000, "/".join("z" * 3000), "%ff%fe", "a b.png/c", "%",
        )  # fmt: skip

        for name in names:
            assert (await refusal(f"{root.as_uri()}/{name}", root=root)).status == 400, name

    async def test_count_towards_what_a_request_may_fetch(self, root: Path) -> None:
        error = await refusal((root / "a b.png").as_uri(), root=root, max_request_download_bytes=3)

        assert error.status == 422

    async def test_of_a_host_are_refused(self, root: Path) -> None:
        assert (await refusal("file://host/etc/passwd", root=root)).status == 400

    async def test_that_are_too_large_are_refused(self, root: Path) -> None:
        error = await refusal((root / "a b.png").as_uri(), root=root, max_download_bytes=3)

        assert "more than 3" in error.message

    def test_need_an_existing_folder(self, root: Path) -> None:
        with pytest.raises(SettingsError, match="not an existing directory"):
            Fetcher(RenderSettings(allowed_local_media_path=str(root / "no")), MediaLimits())
