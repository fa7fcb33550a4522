"""The stateless stream with parsers: kept parsers never change an answer."""

import copy

import pytest

from schemas.derender import DerenderChatStreamRequest
from schemas.errors import ApiError
from schemas.routes import Kind
from workers.derender.chunks import derender_chat_chunk
from workers.derender.parsed_chunks import KeptStreams, ParsedOutput

from .builders import answer, make_model
from .outputs import TOOLS

TEXT = (
    "<think>Let me see 🫠.</think>Well: "
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}</tool_call>'
)
OPTIONS = {
    "reasoning_parser": "qwen3",
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}


@pytest.fixture(scope="module")
def thinking():
    return make_model("tiny-qwen3-thinking", **OPTIONS)


def body(ids, state, finish_reason=None, **chat):
    choice = {"index": 0, "token_ids": ids, "finish_reason": finish_reason}
    return {
        "stream": True,
        "generate_chunk": {"request_id": "r", "choices": [choice]},
        "stream_state": state,
        "prompt_token_ids": [1, 2, 3],
        "chat_request": CHAT | chat,
    }


def stepped(model, kept, ids, state, finish_reason=None, **chat):
    request = DerenderChatStreamRequest.model_validate(body(ids, state, finish_reason, **chat))
    got = derender_chat_chunk(request, model, kept)
    return got.chunk.choices[0].delta.model_dump(), got.stream_state.model_dump()


class CountingStreams(KeptStreams):
    hits = 0

    def take(self, key: bytes) -> ParsedOutput | None:
        stream = super().take(key)
        self.hits += stream is not None
        return stream


def test_every_chunk_but_the_first_goes_on_with_a_kept_parser(thinking):
    ids = thinking.tokenizer.encode(TEXT, add_special_tokens=False)
    kept, state, none = CountingStreams(), None, None
    for position, token in enumerate(ids):
        reason = "stop" if position == len(ids) - 1 else None
        delta, state = stepped(thinking, kept, [token], state, reason)
        replayed, none = stepped(thinking, KeptStreams(), [token], none, reason)
        assert delta == replayed
        assert state == none
    assert kept.hits == len(ids) - 1
    assert state["output_token_ids"] == ids


def test_a_state_that_was_used_before_is_answered_the_same_again(thinking):
    ids = thinking.tokenizer.encode(TEXT, add_special_tokens=False)
    kept = KeptStreams()
    _, state = stepped(thinking, kept, ids[:20], None)
    before = copy.deepcopy(state)

    answers = [stepped(thinking, kept, ids[20:25], state) for _ in range(3)]

    assert answers[0] == answers[1] == answers[2]
    assert state == before


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state | {"output_token_ids": [*state["output_token_ids"][:-1], 64]},
        lambda state: state | {"output_chunk_lens": [10, 10]},
        lambda state: state | {"output_token_ids": [], "output_chunk_lens": []},
    ],
)
def test_a_changed_state_is_read_from_its_beginning(thinking, change):
    ids = thinking.tokenizer.encode(TEXT, add_special_tokens=False)
    kept = KeptStreams()
    _, state = stepped(thinking, kept, ids[:20], None)

    got = stepped(thinking, kept, ids[20:25], change(state))

    assert got == stepped(thinking, KeptStreams(), ids[20:25], change(state))


def test_a_parser_is_kept_for_its_request_alone(thinking):
    ids = thinking.tokenizer.encode(TEXT, add_special_tokens=False)
    kept = CountingStreams()
    _, state = stepped(thinking, kept, ids[:20], None)

    delta, _ = stepped(thinking, kept, ids[20:], state, tool_choice="none")

    assert kept.hits == 0
    assert "</tool_call>" in delta["content"]


def test_no_more_parsers_are_kept_than_allowed(thinking):
    kept = KeptStreams(limit=2)
    for token in (64, 65, 66):
        stepped(thinking, kept, [token], None)

    assert len(kept._streams) == 2


@pytest.mark.parametrize(
    "state",
    [
        {"output_token_ids": [2**80], "output_chunk_lens": [1]},
        {"output_token_ids": [64, 65], "output_chunk_lens": [1]},
        {"output_token_ids": [1] * 9000, "output_chunk_lens": [9000]},
    ],
)
async def test_a_state_that_cannot_be_is_the_callers_fault(start, state):
    stage = await start("tiny-qwen3-thinking", **OPTIONS)

    with pytest.raises(ApiError) as caught:
        await answer(stage, Kind.CHAT_DERENDER, body([64], state))

    assert caught.value.status == 400


async def test_negative_and_unknown_ids_are_no_text(start):
    stage = await start("tiny-qwen3-thinking", **OPTIONS)
    state = {"output_token_ids": [-1, 99_999], "output_chunk_lens": [2]}

    got = await answer(stage, Kind.CHAT_DERENDER, body([64], state))

    assert got["chunk"]["choices"][0]["delta"]["reasoning"]
