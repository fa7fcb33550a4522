"""Whatever a constrained output could be, it is within its constraint."""

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ApiError
from workers.models.engine.structured import Constraint, Grammars, Matchers

from .test_tokens import SOURCE, TOKENIZER

EOS = 2002
TEXTS = st.text('abé "\\\n', min_size=1, max_size=6)
VOCAB = 2048
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture
def grammars():
    return Grammars(SOURCE, VOCAB, [EOS])


def allowed(matchers):
    return torch.isfinite(matchers.mask(torch.zeros(1, VOCAB), [0])[0]).nonzero()[:, 0].tolist()


def walk(matchers, random, most=200):
    output = []
    while not output or output[-1] != EOS:
        tokens = allowed(matchers)
        assert tokens
        # Prefer the end: a random walk through JSON would hardly ever find it.
        token = EOS if EOS in tokens else random.choice(tokens)
        matchers.accept(0, token)
        output.append(token)
        if len(output) > most:
            return None
    return TOKENIZER.decode(output[:-1])


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=3), st.randoms())
def test_a_choice_is_one_of_the_texts(choices, random):
    grammar = Grammars(SOURCE, VOCAB, [EOS])._compile({"choice": choices})

    said = walk(Matchers(Constraint(grammar), 1), random)

    assert any(choice.startswith(said) or choice == said for choice in choices)
    assert said in choices


@settings(max_examples=25, deadline=None)
@given(st.randoms())
def test_an_object_is_valid_json_of_its_schema(random):
    grammar = Grammars(SOURCE, VOCAB, [EOS])._compile({"json": SCHEMA, "json_object": None})

    said = walk(Matchers(Constraint(grammar), 1), random)

    if said is not None:
        value = json.loads(said)
        assert isinstance(value["a"], int)
        assert value["b"] in ("x", "y")


async def test_a_regular_expression_is_matched(grammars):
    grammar = await grammars.compile({"regex": "[0-9]{3}-[a-c]"})

    said = walk(Matchers(Constraint(grammar), 1), __import__("random").Random(0))

    assert re.fullmatch("[0-9]{3}-[a-c]", said)


async def test_a_constraint_waits_for_the_end_of_reasoning(grammars):
    grammar = await grammars.compile({"choice": ["yes"]})
    matchers = Matchers(Constraint(grammar, frozenset({7})), 2)

    assert len(allowed(matchers)) == VOCAB
    matchers.accept(0, 7)

    assert 0 < len(allowed(matchers)) < 10
    both = matchers.mask(torch.zeros(2, VOCAB), [0, 1])
    assert torch.isfinite(both[1]).all()


@pytest.mark.parametrize(
    "wire",
    [
        {"regex": "("},
        {"json": {"type": "objct"}},
        {"json": "not json"},
        {"grammar": "root ::= undefined_rule"},
        {"grammar": ""},
        {"structural_tag": "{}"},
        {"structural_tag": "nonsense"},
        {"structural_tag": '{"structures": [{}], "triggers": []}'},
    ],
)
async def test_what_cannot_be_compiled_is_the_callers_fault(grammars, wire):
    with pytest.raises(ApiError) as refused:
        await grammars.compile(wire)

    assert (refused.value.status, refused.value.param) == (400, "structured_outputs")
