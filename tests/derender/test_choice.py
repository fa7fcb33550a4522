"""What a choice's stream tells beside its text: ends, counts, ids, and where stops apply."""

import pytest

from schemas.chat import ChatCompletionRequest
from schemas.routes import Kind
from workers.derender.choice import ChoiceStream, grown_text
from workers.derender.parsing import call_id
from workers.derender.stopping import StopStrings

from .builders import answer, make_model
from .outputs import TOOLS

OPTIONS = {
    "reasoning_parser": "qwen3",
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
}


@pytest.fixture(scope="module")
def thinking():
    return make_model("tiny-qwen3-thinking", **OPTIONS)


def opened(model, **more):
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **more}
    request = ChatCompletionRequest.model_validate(body)
    return ChoiceStream(request, [1, 2, 3], model, request_id="chatcmpl-1")


def ids_of(model, text):
    return model.tokenizer.encode(text, add_special_tokens=False)


def test_a_stop_string_in_the_reasoning_does_not_count(thinking):
    stream = opened(thinking, stop=["Question:"])

    grown = [stream.push(ids_of(thinking, "<think>Question: why</think>Because. Question: no"))]

    assert grown_text(grown, "reasoning") == "Question: why"
    assert grown_text(grown, "content") == "Because. "
    assert grown[0].finish_reason == "stop"
    assert grown[0].stop_reason == "Question:"
    assert stream.has_stopped


def test_usage_counts_up_to_the_token_that_completed_the_stop_string(thinking):
    before = ids_of(thinking, "<think>a</think>one E")
    stream = opened(thinking, stop=["END"])
    first = stream.push(before)
    assert "E" not in grown_text([first], "content")  # it may be the beginning of the stop string

    tail = [*ids_of(thinking, "N"), *ids_of(thinking, "D"), *ids_of(thinking, " two")]
    second = stream.push(tail)

    assert grown_text([first, second], "content") == "one "
    assert second.num_tokens == len(before) + 2
    assert stream.push(tail, "length").parts == []


def test_what_may_begin_a_stop_string_is_given_out_at_the_end(thinking):
    stream = opened(thinking, stop=["END"])

    grown = [stream.push(ids_of(thinking, "<think></think>the EN")), stream.push([], "length")]

    assert grown_text(grown, "content") == "the EN"
    assert grown[-1].finish_reason == "length"


def test_reasoning_cut_by_length_is_reasoning(thinking):
    stream = opened(thinking)

    grown = [stream.push(ids_of(thinking, "<think>abc"), "length")]

    assert grown_text(grown, "reasoning") == "abc"
    assert grown_text(grown, "content") == ""
    assert grown[0].reasoning_tokens == len(ids_of(thinking, "abc"))


def test_special_tokens_are_left_out_after_parsers_have_seen_them(thinking):
    text = "<think>a<|im_start|></think>b<|im_start|>c"
    stream, keeping = opened(thinking), opened(thinking, skip_special_tokens=False)

    plain = [stream.push(ids_of(thinking, text), "length")]
    kept = [keeping.push(ids_of(thinking, text), "length")]

    assert grown_text(plain, "content") == "bc"
    assert grown_text(kept, "content") == "b<|im_start|>c"


def test_no_delta_holds_half_a_character(thinking):
    ids = ids_of(thinking, "<think>🫠👨‍👩‍👧</think>🇩🇪北京สวัสดี")
    stream = opened(thinking)

    grown = [stream.push([token]) for token in ids]

    assert grown_text(grown, "reasoning") == "🫠👨‍👩‍👧"
    assert grown_text(grown, "content") == "🇩🇪北京สวัสดี"
    assert not any("\ufffd" in part.text for one in grown for part in one.parts)


def test_ids_of_calls_depend_on_their_place_alone():
    assert call_id("r", 0, 0) == call_id("r", 0, 0)
    assert (
        len({call_id("r", c, i) for c in range(3) for i in range(3)} | {call_id("s", 0, 0)}) == 10
    )
    assert call_id("r", 0, 0).startswith("chatcmpl-tool-")
    short = call_id("r", 0, 0, is_short=True)
    assert len(short) == 9
    assert short.isalnum()


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "found"),
    [
        (["END"], ["one EN", "D two"], ["one ", ""], "END"),
        (["aab"], ["aaa", "b"], ["a", ""], "aab"),
        (["ab", "b"], ["a", "b"], ["", ""], "ab"),
        (["x"], ["abc"], ["abc"], None),
        ([], ["abc"], ["abc"], None),
        (["🫠!"], ["a🫠", "?"], ["a", "🫠?"], None),
    ],
)
def test_stop_strings(stops, pieces, expected, found):
    stopping = StopStrings(stops)

    assert [stopping.push(piece) for piece in pieces] == expected
    assert stopping.found == found


def test_a_stop_string_within_the_first_tokens_does_not_count():
    stopping = StopStrings(["aa"], is_included=True)

    assert stopping.push("aa", counts=False) == "a"
    assert stopping.push("a") == "aa"
    assert stopping.found == "aa"


async def test_a_whole_answer_is_cut_where_its_stream_would_be(start, thinking):
    stage = await start("tiny-qwen3-thinking", **OPTIONS)
    text = "<think>END</think>one END two"
    ids = ids_of(thinking, text)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stop": ["END"]}
    made = {
        "request_id": "chatcmpl-1",
        "choices": [{"index": 0, "token_ids": ids, "finish_reason": "length"}],
    }
    sampling = {"stop": ["END"]}
    prompt = {"request_id": "chatcmpl-1", "token_ids": [1, 2, 3], "sampling_params": sampling}

    got = await answer(stage, Kind.CHAT, body, prompts=[prompt], generated=[made])

    choice = got["choices"][0]
    assert choice["message"]["reasoning"] == "END"
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
    assert got["usage"]["completion_tokens"] == len(ids_of(thinking, "<think>END</think>one END"))
    assert got["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": len(ids_of(thinking, "END"))
    }
