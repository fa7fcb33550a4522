"""However the tokens are cut, what streams out is what the whole answer says."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.envelope import Envelope
from schemas.records.reply import Reply, StreamPiece
from schemas.routes import Kind
from schemas.validation import parse_body
from workers.derender.coupled import chat_answer, completion_answer, read_generations
from workers.derender.streaming import RequestStream, Streams, all_tokens

from .builders import LLAVA, QWEN, generated, make_model, prompt

MODELS = {name: make_model(name) for name in (QWEN, LLAVA)}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = [35, 425, 66, 318]


def opened(kind, body, prompts, outputs, model):
    request = parse_body(kind, json.dumps(body).encode(), model.limits)
    generations = read_generations(prompts, outputs)
    envelope = Envelope(id="1", kind=kind, created_ms=0, deadline_ms=1, run="run")
    return request, generations, RequestStream(envelope, request, generations, model)


def cut(tokens, sizes):
    """The same tokens in several records; the last one has the finish reason."""
    pieces, start = [], 0
    for size in [*sizes, len(tokens.token_ids)]:
        end = min(start + size, len(tokens.token_ids))
        is_last = end == len(tokens.token_ids)
        pieces.append(
            tokens.model_copy(
                update={
                    "start": start,
                    "token_ids": tokens.token_ids[start:end],
                    "logprobs": tokens.logprobs and tokens.logprobs[start:end],
                    "finish_reason": tokens.finish_reason if is_last else None,
                    "stop_reason": tokens.stop_reason if is_last else None,
                }
            )
        )
        start = end
        if is_last:
            break
    return pieces


def text_of(deltas):
    text = ""
    for delta in deltas:
        for part in delta.parts:
            assert part.start == len(text)
            text += part.text
    return text


@pytest.mark.parametrize("name", sorted(MODELS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_chat_streams_what_the_whole_says(name, data):
    model = MODELS[name]
    ids = data.draw(st.lists(st.integers(0, model.limits.vocab_size - 1), max_size=24))
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=24))
    stops = data.draw(st.lists(st.text(min_size=1, max_size=3), max_size=2))
    sampling = {"stop": stops, "min_tokens": data.draw(st.integers(0, 3))}
    text = "".join(map(model.tokenizer.decode, ([token] for token in ids)))
    # An engine would have stopped where a stop string is complete.
    texts = text, " " + model.tokenizer.decode(ids)
    is_stopped = any(stop in text for stop in stops for text in texts)
    finish = "stop" if is_stopped else data.draw(st.sampled_from(["stop", "length"]))
    sampling["min_tokens"] = 0 if is_stopped else sampling["min_tokens"]
    outputs = [generated(ids, finish_reason=finish, stop_reason=None)]

    request, generations, stream = opened(
        Kind.CHAT, CHAT | {"stop": stops}, [prompt(PROMPT, **sampling)], outputs, model
    )
    whole = chat_answer(request, generations[0], model).choices[0]
    (tokens,) = all_tokens(outputs)
    deltas = [d for piece in cut(tokens, sizes) for d in stream.grow([piece]) or []]

    assert text_of(deltas) == whole.message.content
    if deltas:
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (finish, whole.stop_reason)


def scored(ids):
    top = [{"token_id": token, "logprob": -1.0, "rank": 1} for token in ids]
    content = [{**entry, "top_logprobs": [entry]} for entry in top]
    return {"logprobs": {"content": content}}


def test_a_completion_with_echo_begins_with_the_prompt():
    model, ids = MODELS[QWEN], [1760, 1647, 1625]
    body = {"prompt": "x", "echo": True, "logprobs": 1, "max_tokens": 3}
    output = generated(ids, **scored(ids))
    output["prompt_logprobs"] = [None] + [{token: {"logprob": -2.0}} for token in PROMPT[1:]]

    request, generations, stream = opened(
        Kind.COMPLETION, body, [prompt(PROMPT, "the prompt ")], [output], model
    )
    whole = completion_answer(request, generations, model).choices[0]
    (tokens,) = all_tokens([output])
    deltas = [d for piece in cut(tokens, [1, 1]) for d in stream.grow([piece]) or []]

    assert text_of(deltas) == whole.text
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry["tokens"] for entry in entries] == whole.logprobs.tokens
    assert [entry["text_offset"] for entry in entries] == whole.logprobs.text_offset


def test_tokens_that_are_known_add_nothing_and_a_gap_waits_for_all_of_them():
    model, outputs = MODELS[QWEN], [generated([1760, 1647, 1625])]
    _, _, stream = opened(Kind.CHAT, CHAT, [prompt(PROMPT)], outputs, model)
    (tokens,) = all_tokens(outputs)
    first, _, third = cut(tokens, [1, 1])

    assert stream.grow([third]) is None
    assert len(stream.grow([first])) == 1
    assert stream.grow([first]) == []
    deltas = stream.grow([tokens])

    assert [delta.token_ids for delta in deltas] == [[1647, 1625]]


def test_a_worker_keeps_a_bounded_number_of_streams_each_of_one_execution():
    model, outputs = MODELS[QWEN], [generated([1760])]
    streams = Streams(limit=2)
    _, _, stream = opened(Kind.CHAT, CHAT, [prompt(PROMPT)], outputs, model)

    for name in ("a", "b", "c"):
        streams.keep(name, stream)

    assert streams.get("a", "run") is None
    assert streams.get("b", "run") is stream
    assert streams.get("b", "another run") is None


def test_tokens_of_another_execution_do_not_go_on_with_those_that_are_known():
    model, outputs = MODELS[QWEN], [generated([1760, 1647, 1625])]
    _, _, stream = opened(Kind.CHAT, CHAT, [prompt(PROMPT)], outputs, model)
    (tokens,) = all_tokens(outputs)
    (others,) = all_tokens([generated([1760, 1, 1625, 4])])
    first, second, _ = cut(tokens, [1, 1])

    stream.grow([first])
    stream.grow([second])

    assert stream.grow([others]) is None


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>{"name": "\\ud83d", "arguments": {"a": "\\ud83d"}}</tool_call>'),
        ("pythonic", '[f(a="\\ud83d")]'),
    ],
)
def test_half_a_surrogate_pair_in_a_call_can_travel(parser, text):
    model = make_model(QWEN, tool_call_parser=parser, enable_auto_tool_choice=True)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    outputs = [generated(model.tokenizer.encode(text, add_special_tokens=False))]
    body = CHAT | {"tools": [tool]}

    _, _, stream = opened(Kind.CHAT, body, [prompt(PROMPT)], outputs, model)
    deltas = stream.grow(all_tokens(outputs))
    reply = Reply(id="1", piece=StreamPiece(deltas=deltas))

    assert Reply.decode(reply.encode()).piece == reply.piece
    (part,) = [part for delta in deltas for part in delta.parts if part.tool_name is not None]
    assert part.tool_name in ("f", "\N{REPLACEMENT CHARACTER}")
