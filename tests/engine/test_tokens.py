import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.errors import ApiError
from tests.engine.builders import MODELS
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


def test_bad_words_are_counted_before_they_are_tokenized(monkeypatch):
    monkeypatch.setattr(SOURCE, "_encode", pytest.fail)

    for words in (["x"] * 100_000, ["x" * 1_000_000]):
        with pytest.raises(ApiError) as caught:
            SOURCE.bad_words(words)
        assert (caught.value.status, caught.value.param) == (400, "bad_words")
        assert len(caught.value.message) < 200
