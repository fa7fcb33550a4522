import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.errors import ApiError
from tests.engine.builders import MODELS
from workers.models.engine.choices import MAX_BYTES, ChoiceGrammar, TokenIndex
from workers.models.engine.sampling import Sampling
from workers.models.engine.tokens import TextSource
from workers.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_directory(MODELS / "tiny-qwen3-vl")
LLAVA = Tokenizer.from_directory(MODELS / "tiny-llava")
SOURCES = [TextSource(TOKENIZER, 2048), TextSource(LLAVA, 1472)]
SOURCE = SOURCES[0]


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30))
@example("\uf900")
@example("a\ufffd")
def test_streamed_text_is_the_whole_text(text):
    push = SOURCE.stream([], Sampling())

    # The tokenizer composes characters (NFC); an end that looks unfinished is held back.
    wanted = unicodedata.normalize("NFC", text).rstrip("\ufffd")
    assert "".join(push(token) for token in encode(text)) == wanted


def test_special_tokens_are_text_only_when_asked_for():
    ids = [2001, *encode("hi"), 2002]

    hidden = SOURCE.stream([], Sampling())
    shown = SOURCE.stream([], Sampling(skip_special_tokens=False))

    assert "".join(map(hidden, ids)) == "hi"
    assert "".join(map(shown, ids)) == "<|im_start|>hi<|im_end|>"


def test_ids_without_meaning_do_not_break_a_stream():
    push = SOURCE.stream([], Sampling(skip_special_tokens=False))

    assert isinstance("".join(push(token) for token in (2047, 2**31, 149, 149, 150)), str)


def test_a_broken_character_belongs_to_the_token_that_completes_it():
    ids = encode("é€")
    texts = [SOURCE.token_text(token, ids[:i]) for i, token in enumerate(ids)]

    assert "".join(texts) == "é€"
    assert "\ufffd" not in "".join(texts)


@given(st.lists(st.integers(0, 2047), max_size=8))
def test_the_text_of_a_token_never_ends_in_a_replacement_character(ids):
    for i, token in enumerate(ids):
        assert not SOURCE.token_text(token, ids[:i]).endswith("\ufffd")


def test_bad_words_are_blocked_alone_and_after_a_space():
    found = SOURCE.bad_words(["import"])

    assert found[0] == encode("import")
    assert found[1:] in ([], [encode(" import")])


def test_too_many_bad_words_are_refused():
    with pytest.raises(ApiError, match="Too many bad words"):
        SOURCE.bad_words([f"word{i}" for i in range(129)])


@pytest.mark.parametrize("source", SOURCES)
def test_bytes_of_tokens_add_up_to_the_text(source):
    tokenizer = source._tokenizer
    ids = tokenizer.encode("Hello, wörld €", add_special_tokens=False)

    joined = b"".join(source.token_bytes[token] for token in ids)

    assert joined.decode().lstrip() == "Hello, wörld €"


def allowed_by_looking(choices, output):
    """The same, said simply."""
    so_far = b"".join(SOURCE.token_bytes.get(token, b"") for token in output)
    rests = [c.encode()[len(so_far) :] for c in choices if c.encode().startswith(so_far)]
    ends = {2002} if b"" in rests else set()
    return ends | {
        token
        for token, data in SOURCE.token_bytes.items()
        if data and any(rest.startswith(data) for rest in rests)
    }


def test_a_step_does_not_depend_on_how_long_a_choice_is():
    """Counted in looks at the vocabulary, since time says little beside other work."""
    looks = []

    class Counting(list):
        def __getitem__(self, at):
            looks.append(at)
            return super().__getitem__(at)

    def looks_of(choice):
        index = TokenIndex(SOURCE.token_bytes)
        index.pieces = Counting(index.pieces)
        looks.clear()
        grammar = ChoiceGrammar([choice], index, [2002])
        assert grammar.allowed(grammar.start)
        return len(looks)

    assert looks_of("a b" * 50_000) == looks_of("a b" * 500)


def test_choices_that_begin_alike_are_looked_through_once():
    choices = [f"{'same beginning ' * 10}{number}" for number in range(1000)]
    grammar = ChoiceGrammar(choices, SOURCE.token_index, [2002])

    state = grammar.start
    for token in encode("same beginning " * 10 + "77"):
        assert token in grammar.allowed(state)
        state = grammar.after(state, token)

    assert 2002 in grammar.allowed(state)
    assert state.high - state.low == 11


def test_more_choices_than_are_looked_through_are_refused():
    for choices in (["x" * (MAX_BYTES + 1)], ["é" * (MAX_BYTES // 2 + 1)]):
        with pytest.raises(ApiError, match="bytes together") as caught:
            ChoiceGrammar(choices, SOURCE.token_index, [2002])
        assert (caught.value.status, caught.value.param) == (400, "structured_outputs")


def test_bad_words_are_counted_before_they_are_tokenized(monkeypatch):
    monkeypatch.setattr(SOURCE, "_encode", pytest.fail)

    for words in (["x"] * 100_000, ["x" * 1_000_000]):
        with pytest.raises(ApiError) as caught:
            SOURCE.bad_words(words)
        assert (caught.value.status, caught.value.param) == (400, "bad_words")
        assert len(caught.value.message) < 200


@given(st.lists(st.text("abé ", min_size=1, max_size=6), min_size=1, max_size=3), st.randoms())
def test_any_walk_along_allowed_tokens_ends_in_a_choice(choices, random):
    grammar = ChoiceGrammar(choices, SOURCE.token_index, [2002])
    output, state = [], grammar.start

    while not output or output[-1] != 2002:
        allowed = sorted(grammar.allowed(state))
        assert allowed == sorted(allowed_by_looking(choices, output))
        output.append(random.choice(allowed))
        state = grammar.after(state, output[-1])

    assert TOKENIZER.decode(output[:-1]) in choices
