"""Words, JSON and draws of fields that all bodies are made of. Knows no field by name."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from hypothesis import strategies as st

Strategy: TypeAlias = st.SearchStrategy[Any]
Fields: TypeAlias = dict[str, Strategy]


def rarely(odd: Strategy, usual: Strategy, of: int = 20) -> Strategy:
    return st.integers(0, of - 1).flatmap(lambda number: odd if number == of // 3 else usual)


def chosen(*values: Any) -> Strategy:
    return st.sampled_from(values)


_WORDS = (
    *("hello", "Weather", "é", "é", "日本", "👩‍👩‍👧", "😀", "ﬁ", "Å", "\u200b", "\ufeff", "\ufdd0"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r\n", "\x00", "don't", "I'LL", "123", "1234567", "a" * 30),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>"),
    *("</tool_call>", "<tool_response>", "<|eot_id|>", "<s>", "<", "|>", ".", "!?", "\\", '"'),
    *("x-anthropic-billing-header: a\nrest", '{"a":1}', "[]", "{{ messages }}", "Picture 1: "),
)
LITERALS = ("<|image_pad|>", "<|video_pad|>")
TEXT = st.lists(st.one_of(chosen(*_WORDS), st.text(max_size=6)), max_size=8).map("".join)
TEXT_OR_LITERAL = rarely(st.tuples(TEXT, chosen(*LITERALS), TEXT).map("".join), TEXT, 150)
_SCALAR = st.one_of(
    chosen(None, True, 0, -5, 3.5, 1e20, 2**63), TEXT, st.floats(-9, 9).map(lambda x: round(x, 3))
)
JSON = st.recursive(
    _SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(chosen("a", "b", "é", "type", "properties", "name"), inner, max_size=3),
    ),
    max_leaves=6,
)


@st.composite
def some(
    draw: st.DrawFn, sound: Mapping[str, Strategy], odd: Mapping[str, Strategy], most: int = 4
) -> dict[str, Any]:
    """A few of the sound fields; one request in eight also has an odd one."""
    names = draw(st.lists(chosen(*sound), max_size=most, unique=True))
    fields = {name: draw(sound[name]) for name in names}
    if odd and draw(st.integers(0, 7)) == 5:
        name = draw(chosen(*odd))
        fields[name] = draw(odd[name])
    return fields
