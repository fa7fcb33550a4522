"""Work grows with its input and not with the square of it; large texts keep nobody waiting."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from schemas.errors import ApiError, Busy
from schemas.openai_responses import ResponsesRequest
from schemas.refusals import sanitized
from schemas.routes import URL_OF_KIND, Kind
from tests.render.builders import DATA, FakeMedia, chat, make_job, start_stage, user
from workers.render.chat import MediaRules, read_conversation
from workers.render.media import MediaPart
from workers.render.responses_api import _messages
from workers.text.detokenizer import StreamDecoder, WindowDecoder
from workers.text.private_tokens import PrivateTokens
from workers.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_directory(DATA / "models" / "tiny-qwen3-vl")
HALF_A_CHARACTER = TOKENIZER.vocabulary["¢"]  # how byte-level pieces write the byte A2
PAD = "<|image_pad|>"


def _window(ids: list[int]) -> None:
    decoder = WindowDecoder(TOKENIZER, skip_special_tokens=True)
    decoder.feed(decoder.seed([]), ids)


def _stream(ids: list[int]) -> None:
    StreamDecoder(TOKENIZER, skip_special_tokens=True).feed(ids)


def _calls(count: int) -> ResponsesRequest:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return ResponsesRequest.model_validate({"input": [call] * count})


def _pictures(count: int) -> list[dict[str, Any]]:
    return [user(*[{"type": "image_url", "image_url": {"url": "a"}}] * count)]


def _positions(given: tuple[PrivateTokens, str]) -> None:
    tokens, text = given
    position = tokens.reveal_positions(text)
    for index in range(0, len(text), 8):
        position(index)


def _hidden(count: int) -> tuple[PrivateTokens, str]:
    tokens = PrivateTokens([PAD])
    return tokens, tokens.hide(PAD) * count


_ALL = {"image": 10**9}
_RULES = MediaRules(limits=_ALL, max_limits=_ALL, placeholder=lambda modality, index: "x")

COSTS: dict[str, tuple[int, Callable[[int], Any], Callable[[Any], object]]] = {
    "unfinished characters": (2000, lambda n: [HALF_A_CHARACTER] * n, _window),
    "unfinished characters of a stream": (2000, lambda n: [HALF_A_CHARACTER] * n, _stream),
    "paths in an error": (4000, lambda n: "/a" * n, sanitized),
    "a long path in an error": (4000, lambda n: "/" + "a" * n, sanitized),
    "calls of a turn": (1000, _calls, _messages),
    "pictures": (500, _pictures, lambda given: read_conversation(given, "openai", _RULES)),
    "private tokens": (2000, _hidden, _positions),
}


@pytest.mark.parametrize("name", COSTS)
def test_ten_times_as_much_takes_ten_times_as_long(name: str) -> None:
    size, make, call = COSTS[name]
    small, large = make(size), make(10 * size)

    ratios = [_seconds(call, large) / max(_seconds(call, small), 1e-4) for _ in range(3)]

    assert min(ratios) < 40


def _seconds(call: Callable[[Any], object], given: Any) -> float:
    started = time.thread_time()
    call(given)
    return time.thread_time() - started


def test_garbage_is_told_in_pieces_and_what_follows_is_whole() -> None:
    ids = [HALF_A_CHARACTER] * 1000 + TOKENIZER.encode("Hello é!", add_special_tokens=False)
    window = WindowDecoder(TOKENIZER, skip_special_tokens=True)

    text, state = window.feed(window.seed([]), ids)
    streamed = StreamDecoder(TOKENIZER, skip_special_tokens=True).feed(ids)

    assert text == streamed == TOKENIZER.decode(ids)
    assert len(state.pieces) < 100


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no /usr/lib/python3/x.py here", "no <path> here"),
        ("at /a/b.py:5", "at <path>:5"),
        ("x" * 5000 + " /home/me/x " + "y/" * 2000, "x" * 5000 + " <path> " + "y/" * 2000),
    ],
)
def test_paths_of_the_machine_stay_untold(message: str, expected: str) -> None:
    assert sanitized(message) == expected


def test_nobody_waits_for_offsets_of_a_long_text() -> None:
    """The interpreter is free meanwhile."""

    async def longest_wait() -> float:
        longest, last = 0.0, time.perf_counter()
        encoding = asyncio.create_task(
            asyncio.to_thread(
                TOKENIZER.encode_with_offsets, "ab " * 200_000, add_special_tokens=True
            )
        )
        while not encoding.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        _, offsets = encoding.result()
        assert len(offsets) >= 200_000
        return longest

    started = time.perf_counter()
    longest = asyncio.run(longest_wait())

    assert longest < 0.7 * (time.perf_counter() - started)


async def test_large_texts_take_their_turns_and_others_go_on() -> None:
    stage = await start_stage("tiny-qwen3-vl", "--render-threads 1", media=FakeMedia())
    body = {"messages": [user("word " * 400_000)], "truncate_prompt_tokens": 10}
    tasks = [asyncio.create_task(stage.process(make_job(Kind.CHAT, body))) for _ in range(4)]
    async with asyncio.timeout(60):
        while sum(task.done() for task in tasks) < 2:
            await asyncio.sleep(0)
        others = await chat(stage, [user("word " * 2000)])
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert others["token_ids"]
    assert [type(outcome) for outcome in outcomes].count(Busy) == 2
    assert outcomes.count(None) == 2
    await stage.close()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "a" * 2_000_000}},
        {"type": "image_url", "image_url": "a" * 2_000_000},
        {"type": "input_audio", "input_audio": {"data": "a" * 2_000_000, "format": "wav"}},
    ],
)
async def test_media_make_no_text_large(part: dict[str, Any]) -> None:
    stage = await start_stage("tiny-qwen3-vl", media=FakeMedia())
    stage._large = None  # using it would fail
    for url, body in (
        (URL_OF_KIND[Kind.CHAT_RENDER], {"messages": [user(part)]}),
        (URL_OF_KIND[Kind.TOKENIZE], {"messages": [user(part)]}),
    ):
        kind = next(kind for kind, known in URL_OF_KIND.items() if known == url)
        with suppress(ApiError):
            await stage.process(make_job(kind, body))
    await stage.close()


def test_a_part_of_media_is_counted_by_its_own_limit() -> None:
    rules = MediaRules(
        limits={"image": 2, "video": 1}, max_limits={"image": 9, "video": 9},
        placeholder=lambda modality, index: f"{modality}{index}",
    )  # fmt: skip
    video = {"type": "video_url", "video_url": {"url": "v"}}
    image = {"type": "image_url", "image_url": {"url": "i"}}

    read = read_conversation([user(image, video, image)], "string", rules)

    assert read.messages[0]["content"] == "image0\nvideo0\nimage1"
    assert all(isinstance(part, MediaPart) for part in read.parts)
    with pytest.raises(ApiError, match=r"At most 2 image"):
        read_conversation([user(image, video, image, image)], "string", rules)
