"""Whatever is sent again, a client gets every token and every character once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.forwarded import Forwarded
from schemas.errors import ApiError, FailureCode
from schemas.records.reply import StreamDelta, TextPart


@st.composite
def runs(draw):
    """Token ids, and the same cut into deltas in several ways, each from the start."""
    tokens = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    deltas = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, len(tokens)))) | {len(tokens)})
        reached = len(tokens) if not deltas else draw(st.integers(1, len(tokens)))
        start = 0
        for end in (cut for cut in cuts if cut <= reached):
            deltas.append(delta(tokens, start, end))
            start = end
    return tokens, deltas


def delta(tokens, start, end):
    text = "".join(f"<{token}>" for token in tokens[start:end])
    return StreamDelta(
        choice=0,
        start=start,
        token_ids=tokens[start:end],
        parts=[TextPart(start=3 * start, text=text)],
        logprobs=[{"token": token} for token in tokens[start:end]],
        finish_reason="stop" if end == len(tokens) else None,
    )


@given(runs())
def test_repeated_work_adds_nothing(run):
    tokens, deltas = run
    forwarded = Forwarded()

    fresh = [new for given in deltas if (new := forwarded.fresh(given)) is not None]

    assert [token for new in fresh for token in new.token_ids] == tokens
    assert [entry["token"] for new in fresh for entry in new.logprobs] == tokens
    text = "".join(part.text for new in fresh for part in new.parts)
    assert text == "".join(f"<{token}>" for token in tokens)
    assert [new.finish_reason for new in fresh if new.finish_reason] == ["stop"]


@pytest.mark.parametrize(
    "second",
    [
        delta([1, 3, 4], 0, 3),
        delta([9, 2, 3], 0, 2),
        delta([1, 2, 3, 4], 3, 4),  # a gap
        StreamDelta(choice=0, start=0, parts=[TextPart(start=0, text="oth")]),
        StreamDelta(choice=0, start=2, parts=[TextPart(start=7, text="gap")]),
    ],
)
def test_what_contradicts_or_does_not_join_on_ends_the_stream(second):
    forwarded = Forwarded()
    forwarded.fresh(delta([1, 2], 0, 2))

    with pytest.raises(ApiError) as refused:
        forwarded.fresh(second)

    assert refused.value.code is FailureCode.STREAM_DIVERGED


def test_a_call_is_named_once():
    forwarded = Forwarded()
    named = TextPart(channel="tool", start=0, tool_id="call-1", tool_name="look")
    grown = named.model_copy(update={"text": '{"a"'})

    first = forwarded.fresh(StreamDelta(choice=0, start=0, parts=[named]))
    second = forwarded.fresh(StreamDelta(choice=0, start=0, parts=[grown]))

    assert first is not None
    assert first.parts == [named]
    assert second is not None
    assert second.parts == [TextPart(channel="tool", start=0, text='{"a"')]
