import unicodedata

from hypothesis import example, given, settings
from hypothesis import strategies as st

from .builders import QWEN, make_model

MODEL = make_model(QWEN)


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
@example("\uf900")
def test_token_texts_put_together_are_the_text(text):
    ids = MODEL.tokenizer.encode(text, add_special_tokens=False)

    parts = [MODEL.strings.text(token, ids[:index]) for index, token in enumerate(ids)]

    # The tokenizer composes characters.
    assert "".join(parts) == unicodedata.normalize("NFC", text)


def test_bytes_of_an_unfinished_character_read_as_nothing():
    ids = MODEL.tokenizer.encode("\U0001f44d", add_special_tokens=False)

    parts = [MODEL.strings.text(token, ids[:index]) for index, token in enumerate(ids)]

    assert parts == ["", "", "", "\U0001f44d"]
    assert MODEL.strings.text(ids[-1]) == ""


def test_an_id_outside_the_vocabulary_has_no_text_and_is_not_remembered():
    assert MODEL.strings.text(10_000) is None
    assert 10_000 not in MODEL.strings._known


def test_a_decoder_that_takes_leading_spaces_away_gets_them_back(llava):
    assert llava.tokenizer.space_marker is None  # this one is set up without Metaspace
    assert llava.strings.alone(353) == ""
