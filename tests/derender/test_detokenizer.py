import itertools
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.text.detokenizer import StreamDecoder, Window, WindowDecoder, WindowStream

from .builders import LLAVA, QWEN, make_model

MODELS = {name: make_model(name) for name in (QWEN, LLAVA)}
names = st.sampled_from(sorted(MODELS))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.lists(st.integers(0, 2100), max_size=40)


def window_text(name: str, token_ids: list[int], prompt: list[int], *, skip: bool = True) -> str:
    decoder = WindowDecoder(MODELS[name].tokenizer, skip_special_tokens=skip)
    return WindowStream(decoder, decoder.seed(prompt)).feed(token_ids)


def stream_text(name: str, token_ids: list[int], prompt: list[int], **options: bool) -> str:
    options = {"skip_special_tokens": True} | options
    return StreamDecoder(MODELS[name].tokenizer, prompt, **options).feed(token_ids)


@settings(deadline=None)
@given(name=names, token_ids=ids, prompt=ids, cuts=st.lists(st.integers(0, 40)))
def test_text_does_not_depend_on_how_tokens_come_in_chunks(name, token_ids, prompt, cuts):
    decoder = WindowDecoder(MODELS[name].tokenizer, skip_special_tokens=True)
    bounds = sorted({0, len(token_ids), *(min(cut, len(token_ids)) for cut in cuts)})
    window, parts = decoder.seed(prompt), []
    for start, end in itertools.pairwise(bounds):
        text, window = decoder.feed(window, token_ids[start:end])
        parts.append(text)

    assert "".join(parts) == window_text(name, token_ids, prompt)


@settings(deadline=None)
@given(text=texts)
def test_what_was_encoded_comes_back(text):
    tokenizer = MODELS[QWEN].tokenizer
    token_ids = tokenizer.encode(text, add_special_tokens=False)

    # The tokenizer composes characters (NFC); an end that looks unfinished is held back.
    wanted = unicodedata.normalize("NFC", text).rstrip("\ufffd")
    assert window_text(QWEN, token_ids, [], skip=False) == wanted


@settings(deadline=None)
@given(name=names, token_ids=ids, prompt=ids)
def test_a_chunk_never_ends_within_a_character(name, token_ids, prompt):
    decoder = WindowDecoder(MODELS[name].tokenizer, skip_special_tokens=True)
    window = decoder.seed(prompt)

    for token in token_ids:
        text, window = decoder.feed(window, [token])
        assert not text.endswith("\ufffd")


@settings(deadline=None)
@given(name=names, text=texts, before=texts, kept=st.integers(0, 40))
def test_both_decoders_read_text_alike_wherever_it_is_cut(name, text, before, kept):
    tokenizer = MODELS[name].tokenizer
    prompt = tokenizer.encode(before, add_special_tokens=False)
    token_ids = tokenizer.encode(text, add_special_tokens=False)[:kept]

    assert window_text(name, token_ids, prompt) == stream_text(name, token_ids, prompt)


@settings(deadline=None)
@given(token_ids=st.lists(st.integers(0, 1999), max_size=300))
def test_the_window_stays_small_where_characters_end(token_ids):
    decoder = WindowDecoder(MODELS[QWEN].tokenizer, skip_special_tokens=True)
    space = MODELS[QWEN].tokenizer.encode(" a", add_special_tokens=False)

    _, window = decoder.feed(decoder.seed([]), [*token_ids, *space, *space])

    assert window.pieces == ("Ġa",)


def test_the_first_token_keeps_its_space_after_a_prompt():
    tokenizer = MODELS[LLAVA].tokenizer
    hello = tokenizer.encode("Hello", add_special_tokens=False)

    assert window_text(LLAVA, hello, hello) == " Hello"
    assert stream_text(LLAVA, hello, hello) == " Hello"
    assert window_text(LLAVA, hello, []) == "Hello"


def test_special_tokens_of_the_configuration_are_left_out_by_windows_and_all_by_streams():
    start, end = 2001, 2002  # only the second is named in the tokenizer's configuration

    assert window_text(QWEN, [64, end, start], []) == "a<|im_start|>"
    assert stream_text(QWEN, [64, end, start], []) == "a"
    assert window_text(QWEN, [64, end, start], [], skip=False) == "a<|im_end|><|im_start|>"
    assert stream_text(QWEN, [64, end], [], skip_special_tokens=False) == "a<|im_end|>"


def test_ids_outside_the_vocabulary_read_as_nothing():
    beyond = [64, 2**40, 5000, -1, 65]

    assert window_text(QWEN, beyond, []) == "ab"
    assert stream_text(QWEN, beyond, []) == "ab"


@settings(deadline=None)
@given(
    pieces=st.lists(st.text(max_size=3), max_size=8),
    prefix=st.integers(0, 12),
    read=st.integers(0, 12),
    token_ids=ids,
)
def test_a_made_up_window_loses_text_and_nothing_else(pieces, prefix, read, token_ids):
    decoder = WindowDecoder(MODELS[QWEN].tokenizer, skip_special_tokens=True)

    text, window = decoder.feed(Window(tuple(pieces), prefix, read), token_ids)

    assert isinstance(text, str)
    assert window.read >= 0


def test_a_stream_survives_bytes_that_change_what_was_given_out():
    tokenizer = MODELS[LLAVA].tokenizer
    lone = [tokenizer.token_id("<0xE4>"), tokenizer.token_id("<0xBD>")]

    text = StreamDecoder(tokenizer, skip_special_tokens=True).feed([*lone, 353, 297, *lone, 353])

    assert "H" in text
