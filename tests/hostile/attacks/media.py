"""Pictures, videos and media servers that cost more than they look like."""

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.hostile import media_files as files
from tests.hostile.attack import Answer, Attack, Send, Target, post

RENDER = "/v1/chat/completions/render"
CHAT = "/v1/chat/completions"
_REFUSED = frozenset({400})
_FETCH_FAILED = frozenset({400, 422, 504})
_EITHER = frozenset({200, 400})
_LLAVA = "tiny-llava"
_LOCAL = ("--allowed-media-domains", "127.0.0.1")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _chat(kind: str, *urls: str) -> dict[str, object]:
    parts = [{"type": f"{kind}_url", f"{kind}_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def _url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _picture(name: str, make: Callable[[], bytes], expect: frozenset[int] = _REFUSED,
             *, model: str = "tiny-qwen3-vl", times: int = 1) -> Attack:  # fmt: skip
    send = post(RENDER, lambda: _chat("image", *[_url(make())] * times))
    return Attack(name, send, expect, model=model)


def _video(name: str, make: Callable[[], bytes], expect: frozenset[int] = _REFUSED) -> Attack:
    return Attack(name, post(RENDER, lambda: _chat("video", _url(make(), "video/mp4"))), expect)


PICTURES = [
    _picture("progressive JPEG with 2 000 scans", lambda: files.jpeg_of_scans(4000, 2000)),
    _picture("progressive JPEG of 1 000 pixels with 30 000 scans", lambda: files.jpeg_of_scans(32, 30_000), _EITHER),
    _picture("QOI of 20 million pixels", lambda: files.qoi(5000, 4000)),
    _picture("JPEG 2000 of 25 million pixels", lambda: files.saved(files.Image.new("RGB", (5000, 5000)), "JPEG2000"), _EITHER),
    _picture("PNG of 13 000 x 13 000, palette with transparency", lambda: files.palette_png(13_000), _EITHER),
    _picture("PNG of 13 000 x 13 000 with alpha", lambda: files.png_of(13_000, 13_000, 6, 8), _EITHER),
    _picture("PNG of 9 000 x 9 000 with 16 bits a channel", lambda: files.png_of(9_000, 9_000, 6, 16), _EITHER),
    _picture("PNG that claims 100 000 x 100 000", lambda: files.png_that_claims(100_000)),
    _picture("PNG of 200 000 chunks", lambda: files.png_of_chunks(200_000), _EITHER),
    _picture("PNG with 100 compressed texts of 1 MB", lambda: files.png_of_texts(100)),
    _picture("PNG with a colour profile of 500 MB", lambda: files.png_of_profile(500_000_000), _EITHER),
    _picture("animated PNG", lambda: files.animated_png(1000, 20), _EITHER),
    _picture("animated GIF", lambda: files.animated_gif(1000, 50), _EITHER),
    _picture("GIF that claims 60 000 x 60 000", lambda: files.gif_of(60_000, 60_000)),
    _picture("GIF that claims 13 000 x 13 000", lambda: files.gif_of(13_000, 13_000), _EITHER),
    _picture("GIF with 100 000 comments", lambda: files.gif_of_comments(100_000), _EITHER),
    _picture("icon around a large PNG", lambda: files.icon_of(13_000), _EITHER),
    _picture("Photoshop file of 30 000 layers", lambda: files.psd_of_layers(30_000), _EITHER),
    _picture("TIFF of 60 000 tags of 8 MB each", lambda: files.tiff_of_tags(60_000, 8 * 2**20)),
    _picture("JPEG with 5 000 EXIF tags of 60 kB each", lambda: files.with_exif(5_000), _EITHER),
    _picture("BMP of 16 million pixels in runs", lambda: files.bmp_of_runs(4000, 4000), _EITHER),
    _picture("PPM of 16 million pixels in words", lambda: files.ppm_of_words(4000, 4000), _EITHER),
    _picture("AVIF of 36 million pixels", lambda: files.saved(files.Image.new("RGB", (6000, 6000)), "AVIF", speed=10), _EITHER),
    _picture("a picture cut off", lambda: files.palette_png(2000)[:-200]),
    _picture("24 pictures of 7 million pixels", lambda: files.palette_png(2_600), _EITHER, times=24),
    _picture("1 x 8 000 pixels for a tower of one size", lambda: files.png_of(1, 8000, 2, 8), _EITHER, model=_LLAVA),
    _picture("1 x 60 000 pixels for a tower of one size", lambda: files.png_of(1, 60_000, 2, 8), model=_LLAVA),
]  # fmt: skip

VIDEOS = [
    _video("MKV whose last frame comes after three years", files.long_mkv, _EITHER),
    _video("IVF of a million tiny packets", lambda: files.ivf(1_000_000), _EITHER),
    _video("IVF that is cut off", lambda: files.ivf(4)[:50], _EITHER),
    _video("AVI of 100 videos", lambda: files.many_streams(100)),
    _video("a text", lambda: b"hello" * 1000),
    _video("a picture of 13 000 x 13 000 as a video", lambda: files.palette_png(13_000), _EITHER),
]


# Servers


@asynccontextmanager
async def _media_server(serve: Serve) -> AsyncIterator[str]:
    serving: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_served(serve, reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/picture"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _served(serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side goes."""
    try:
        with suppress(OSError):
            await serve(reader, writer)
    finally:
        writer.close()


async def _silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def _dripping(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.1)


async def _endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(65536))
        await writer.drain()


async def _endless_head(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-a: " + b"a" * 8000 + b"\r\n")
        await writer.drain()


def _from(serve: Serve, count: int, urls: int = 1, wait_s: float | None = None) -> Send:
    """So many chats about what such a server sends; after `wait_s` the clients leave."""

    async def send(target: Target) -> Answer:
        async with _media_server(serve) as url:
            body = _chat("image", *(f"{url}?{n}" for n in range(urls)))
            chats = [asyncio.ensure_future(post(RENDER, body)(target)) for _ in range(count)]
            done, left = await asyncio.wait(chats, timeout=wait_s)
            for chat in left:
                chat.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            return max((chat.result() for chat in done), default=Answer(0, b""))

    return send


def _slow(name: str, send: Send, expect: frozenset[int] = _FETCH_FAILED) -> Attack:
    return Attack(name, send, expect, flags=_LOCAL)


SERVERS = [
    _slow("20 chats about pictures of a silent server, left after 10 s", _from(_silent, 20, wait_s=10), frozenset()),
    _slow("40 chats about pictures that drip, left after 10 s", _from(_dripping, 40, wait_s=10), frozenset()),
    _slow("a chat about a picture that drips", _from(_dripping, 1)),
    _slow("16 bodies without end", _from(_endless, 16)),
    _slow("a head without end", _from(_endless_head, 8)),
    _slow("400 chats about pictures of a silent server, left after 5 s", _from(_silent, 400, wait_s=5), frozenset()),
]  # fmt: skip


# Local files


def _local(name: str, make: Callable[[Path], str], kind: str = "image") -> Attack:
    """`make` prepares something in the folder that may be read, and gives its path."""

    async def send(target: Target) -> Answer:
        path = await asyncio.to_thread(make, target.folder)
        return await post(RENDER, _chat(kind, "file://" + path))(target)

    return Attack(name, send, _REFUSED)


def _loop(folder: Path) -> str:
    for one, other in (("loop-a", "loop-b"), ("loop-b", "loop-a")):
        with suppress(FileExistsError):
            (folder / one).symlink_to(folder / other)
    return str(folder / "loop-a")


def _pipe(folder: Path) -> str:
    with suppress(FileExistsError):
        os.mkfifo(folder / "pipe")
    return str(folder / "pipe")


def _socket(folder: Path) -> str:
    path = folder / "socket"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return str(path)


def _outward(folder: Path) -> str:
    with suppress(FileExistsError):
        (folder / "out").symlink_to("/etc/hostname")
    return str(folder / "out")


def _huge(folder: Path) -> str:
    (folder / "huge").touch()
    os.truncate(folder / "huge", 2**40)
    return str(folder / "huge")


FOLDER = [
    _local("a loop of links", _loop),
    _local("a path below a loop of links", lambda folder: _loop(folder) + "/a.png"),
    _local("a path with a null byte", lambda folder: f"{folder}/a%00.png"),
    _local("a folder", str),
    _local("a pipe", _pipe),
    _local("a socket", _socket),
    _local("a device", lambda _: "/dev/zero"),
    _local("a link to the outside", _outward),
    _local("a path to the outside", lambda folder: f"{folder}/../../../etc/hostname"),
    _local("a file of a terabyte", _huge),
    _local("a path of 10 000 letters", lambda folder: f"{folder}/{'a' * 10_000}"),
    _local("a path of 3 000 folders", lambda folder: f"{folder}{'/a' * 3_000}"),
    _local("a video that is a folder", str, "video"),
]


def _data(name: str, make: Callable[[], str], expect: frozenset[int]) -> Attack:
    return Attack(name, post(RENDER, lambda: _chat("image", make())), expect)


_SMALL = files.png_of(64, 64, 2, 8)
_BASE64 = base64.b64encode(_SMALL).decode()

DATA = [
    _data("a percent-encoded data URL", lambda: "data:image/png," + "".join(f"%{b:02x}" for b in _SMALL), frozenset({200})),
    _data("a data URL that says BASE64", lambda: f"data:image/png;BASE64,{_BASE64}", frozenset({200})),
    _data("a data URL with parameters", lambda: f"data:image/png;name=a.png;base64,{_BASE64}", frozenset({200})),
    _data("a folded data URL", lambda: f"data:image/png;base64,{_BASE64[:40]}\r\n {_BASE64[40:]}\n", frozenset({200})),
    _data("a data URL with broken escapes", lambda: "data:image/png,%89PNG%zz", _REFUSED),
    _data("a data URL without padding", lambda: "data:image/png;base64,AAAAA", _REFUSED),
    _data("a data URL of 10 million escapes", lambda: "data:image/png," + "%00" * 10_000_000, _REFUSED),
    _data("a data URL of a million parameters", lambda: "data:image/png" + ";a=b" * 1_000_000 + ",", _REFUSED),
]  # fmt: skip

ATTACKS = [*PICTURES, *VIDEOS, *SERVERS, *FOLDER, *DATA]
