"""Outputs of every parser: whole and in any pieces alike, and nothing that breaks them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.chat import ChatCompletionRequest
from workers.derender.choice import ChoiceStream, Grown, grown_text
from workers.derender.model import TextModel, open_text_model
from workers.derender.parsing import message_reader
from workers.text.parsers import TOOL_FORMATS
from workers.text.parsers.message import Message

from .builders import limits_for, read_model, settings_for
from .marked import write_marked_model
from .outputs import TOOLS, WRITERS, calls, dumpers, mistral_v11, prose, rubbish

REASONING = {"qwen3": "</think>", "deepseek_r1": "</think>", None: ""}
_FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Any:
    """Of the marked tokenizer, by its parsers' names; `newer`: with the token of Mistral's v11."""
    folders = {
        newer: write_marked_model(
            tmp_path_factory.mktemp("marked"), more=("[ARGS]",) if newer else ()
        )
        for newer in (False, True)
    }
    made: dict[Any, TextModel] = {}

    def model(tools: str | None, reasoning: str | None = None, *, newer: bool = False) -> TextModel:
        key = tools, reasoning, newer
        if key not in made:
            options = {"tool_call_parser": tools, "reasoning_parser": reasoning}
            options = {k: v for k, v in options.items() if v is not None}
            own = settings_for("x", enable_auto_tool_choice=tools is not None, **options)
            own = own.model_copy(update={"model": str(folders[newer])})
            made[key] = open_text_model(own, read_model(own), limits_for(own), "assistant")
        return made[key]

    return model


def asked(**more: Any) -> ChatCompletionRequest:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **more}
    return ChatCompletionRequest.model_validate(body)


def streamed(
    model: TextModel, request: ChatCompletionRequest, text: str, sizes: Sequence[int]
) -> list[Grown]:
    """In chunks of these sizes, over and over."""
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    stream = ChoiceStream(request, [1, 2, 3], model, request_id="r")
    grown, start, turn = [], 0, 0
    while start < len(ids):
        size = sizes[turn % len(sizes)]
        grown.append(stream.push(ids[start : start + size]))
        start, turn = start + size, turn + 1
    return [*grown, stream.push([], "length")]


def joined(grown: Sequence[Grown]) -> Message:
    names = {part.tool: part.tool_name for g in grown for part in g.parts if part.tool_name}
    made = [(name, grown_text(grown, "tool", tool)) for tool, name in sorted(names.items())]
    reasoning, content = grown_text(grown, "reasoning"), grown_text(grown, "content")
    return Message(reasoning or None, content or None, made)


def whole(model: TextModel, request: ChatCompletionRequest, text: str) -> Message:
    reader = message_reader(request, model)
    assert reader is not None
    return reader.whole(text, [1, 2, 3])


def read(arguments: str) -> Any:
    return json.loads(arguments)


some_stops = st.lists(st.text("abct<>l\n ", min_size=1, max_size=3), min_size=1, max_size=4)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.parametrize("reasoning", REASONING)
@pytest.mark.parametrize("tools", WRITERS)
@_FEW
@given(data=st.data(), chunks=sizes, thought=prose, content=prose, dump=dumpers)
def test_pieces_add_up_to_the_whole(tools, reasoning, models, data, chunks, thought, content, dump):
    write, made = WRITERS[tools]
    wanted = data.draw(made)
    text = write(content, wanted, dump)
    if reasoning is not None:
        text = f"<think>{thought}{REASONING[reasoning]}{text}"
    model, request = models(tools, reasoning), asked()

    at_once, in_pieces = whole(model, request, text), joined(streamed(model, request, text, chunks))

    assert [call.name for call in at_once.calls] == [name for name, _ in wanted]
    assert [read(call.arguments) for call in at_once.calls] == [given for _, given in wanted]
    assert [name for name, _ in in_pieces.calls] == [name for name, _ in wanted]
    assert [read(text) for _, text in in_pieces.calls] == [given for _, given in wanted]
    assert in_pieces.reasoning == (at_once.reasoning or None)
    assert (in_pieces.content or "").strip() == (at_once.content or "").strip()


@pytest.mark.parametrize("reasoning", REASONING)
@pytest.mark.parametrize("tools", [None, *WRITERS])
@_FEW
@given(chunks=sizes, thought=prose, content=prose)
def test_text_without_calls_stays_as_it_is(tools, reasoning, models, chunks, thought, content):
    if tools is None and reasoning is None:
        return
    text = content if reasoning is None else f"<think>{thought}</think>{content}"
    model = models(tools, reasoning)
    request = asked() if tools else asked(tools=None)

    at_once, in_pieces = whole(model, request, text), joined(streamed(model, request, text, chunks))

    assert (at_once.content or "") == (in_pieces.content or "") == content
    assert (at_once.reasoning or "") == (in_pieces.reasoning or "")
    assert (at_once.reasoning or "") == (thought if reasoning else "")


@_FEW
@given(chunks=sizes, content=prose, made=calls, dump=dumpers)
def test_mistrals_newer_form(models, chunks, content, made, dump):
    text = mistral_v11(content, made, dump)
    model, request = models("mistral", "mistral", newer=True), asked()

    at_once, in_pieces = whole(model, request, text), joined(streamed(model, request, text, chunks))

    expected = [(name, dump(given)) for name, given in made]
    assert [(call.name, call.arguments) for call in at_once.calls] == expected
    assert in_pieces.calls == expected


@pytest.mark.parametrize("tools", TOOL_FORMATS)
@pytest.mark.parametrize("reasoning", [None, "qwen3", "deepseek_r1", "glm45", "mistral"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=rubbish,
    chunks=sizes,
    choice=st.sampled_from(["auto", "none", "required"])
    | st.just({"type": "function", "function": {"name": "search"}}),
    is_parallel=st.booleans(),
    shows=st.booleans(),
)
def test_nothing_a_model_writes_breaks_a_parser(
    tools, reasoning, models, text, chunks, choice, is_parallel, shows
):
    model = models(tools, reasoning)
    request = asked(tool_choice=choice, parallel_tool_calls=is_parallel, include_reasoning=shows)

    message = whole(model, request, text)
    grown, one_by_one = streamed(model, request, text, chunks), streamed(model, request, text, [1])

    assert joined(grown) == joined(one_by_one)
    assert grown[-1].finish_reason == "length"
    assert shows or (message.reasoning is None and not grown_text(grown, "reasoning"))
    assert is_parallel or (len(message.calls) <= 1 and len(joined(grown).calls) <= 1)
    assert choice != "none" or (not message.calls and not joined(grown).calls)


@_FEW
@given(text=rubbish, chunks=sizes, cut=st.integers(0, 60))
def test_a_successor_goes_on_where_the_other_was(models, text, chunks, cut):
    """It pushes all tokens so far and forwards what lies beyond the places that were sent."""
    model, request = models("hermes", "qwen3"), asked()
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    complete = joined(streamed(model, request, text, chunks))
    first = ChoiceStream(request, [1, 2, 3], model, request_id="r")
    sent = [first.push(ids[:cut])]

    successor = ChoiceStream(request, [1, 2, 3], model, request_id="r")
    again = [successor.push(ids[:cut])]
    assert successor.places == first.places
    assert joined(again) == joined(sent)
    rest = [successor.push(ids[cut:]), successor.push([], "length")]

    assert joined([*sent, *rest]) == complete


@pytest.mark.parametrize("is_included", [False, True])
@pytest.mark.parametrize("scope", ["content", "all"])
@_FEW
@given(
    text=rubbish,
    chunks=sizes,
    stops=st.lists(st.text("abct<>l\n ", min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_stop_strings_end_what_they_apply_to(models, scope, is_included, text, chunks, stops):
    model = replace(models("hermes", "qwen3"), stop_scope=scope)
    request = asked(stop=stops, include_stop_str_in_output=is_included)
    free = joined(streamed(models("hermes", "qwen3"), asked(), text, [1]))

    grown = streamed(model, request, text, chunks)
    got = joined(grown)

    if scope == "content":
        assert got.reasoning == free.reasoning
        shown = free.content or ""
        ends = [(shown.find(s) + len(s), shown.find(s), s) for s in stops if s in shown]
        if not ends:
            assert got == free
            return
        end, start, stop = min(ends, key=lambda found: (found[0], stops.index(found[2])))
        assert (got.content or "") == shown[: end if is_included else start]
        assert grown[-1].stop_reason == stop
        assert grown[-1].finish_reason in ("stop", "tool_calls")
    else:
        assert joined(streamed(model, request, text, [1])) == got
