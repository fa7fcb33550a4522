"""Whatever the faster way takes, it gives the ids of Hugging Face's library."""

import copy
import sys
from pathlib import Path

import orjson
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.text.ranked_bpe import MAX_CHARS, ranked_bpe

MODELS = Path(__file__).parent.parent / "data" / "models"
NAMES = ["tiny-qwen3-vl", "llama3-render"]
"""One of each pre-tokenizer that is taken; the first normalizes."""
FILES = {name: orjson.loads((MODELS / name / "tokenizer.json").read_bytes()) for name in NAMES}
THEIRS = {name: tokenizers.Tokenizer.from_str(orjson.dumps(FILES[name]).decode()) for name in NAMES}
OURS = {name: ranked_bpe(FILES[name]) for name in NAMES}

SURROGATES = range(0xD800, 0xE000)
TOKENS = ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|vision_start|>", "<|im_", "|>", "<"]
ODD = [
    "e\u0301",
    "\u0301",
    "\u212b",
    "\uac00",
    "가",
    "ſ",
    "\u212a",
    "İ",
    "\u0085",
    "\u180e",
    "\u200b",
]
WORDS = [
    "'s",
    "'LL",
    "'ſ",
    "12345",
    "word",
    " Word",
    "\r\n",
    "\n \n",
    "   ",
    "\t",
    "。你好",
    "😀",
    "==",
]
texts = st.lists(st.sampled_from([*TOKENS, *ODD, *WORDS]) | st.text(max_size=4), max_size=14)


def theirs(name: str, text: str) -> list[int]:
    return THEIRS[name].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=400, deadline=None)
@given(text=texts.map("".join))
def test_gives_the_same_ids_or_none(name: str, text: str) -> None:
    ids = OURS[name].encode(text)

    assert ids is None or ids == theirs(name, text)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=600, deadline=None)
@given(
    text=st.lists(texts.map("".join), max_size=6).map(" ".join) | texts.map("".join),
    most=st.integers(1, 12),
)
def test_the_ids_of_the_pieces_are_those_of_the_whole(name: str, text: str, most: int) -> None:
    pieces = OURS[name].pieces(text, most)

    assert "".join(pieces) == text
    assert [token for piece in pieces for token in theirs(name, piece)] == theirs(name, text)


@pytest.mark.parametrize("text", ["word " * 5000, "a1" * 9000, "x" * 20000 + " y" * 3000])
def test_pieces_are_as_long_as_they_may_be(text: str) -> None:
    pieces = OURS["llama3-render"].pieces(text, 1000)

    assert all(len(piece) <= 1000 or " " not in piece[1:] for piece in pieces)
    assert len(pieces) < 27


def test_no_added_token_is_cut() -> None:
    whole = changed()
    token = {**whole["added_tokens"][0], "content": "<|pad 1|>", "id": 10**6}
    whole["added_tokens"].append(token)
    whole["added_tokens"].append({**token, "content": "<|b1|>", "id": 10**6 + 1})

    ranked = ranked_bpe(whole)

    assert ranked is not None
    assert ranked.pieces("<|pad 1|> " * 9, 5) == ["<|pad 1|> " * 9]
    assert ranked.pieces("<|b1|> " * 9, 5) == ["<|b1|> " * 9]
    assert len(ranked.pieces("1a" * 9, 5)) > 1


@pytest.mark.parametrize("name", NAMES)
def test_reads_every_code_point_alike(name: str) -> None:
    """The libraries have tables of their own of what a letter, a number and a blank is."""
    points = [chr(n) for n in range(sys.maxunicode + 1) if n not in SURROGATES]
    contexts = [f"a{c}b {c}{c}'{c}1{c}\n{c} " for c in points]

    wrong = []
    for start in range(0, len(contexts), 16):
        together = "x".join(contexts[start : start + 16])
        for text in [together] if OURS[name].encode(together) else contexts[start : start + 16]:
            ids = OURS[name].encode(text)
            if ids is not None and ids != theirs(name, text):
                wrong.append(text)

    assert wrong == []


@pytest.mark.parametrize("text", ["a\ud800b", "e\u0301", "x" * (MAX_CHARS + 1)])
def test_leaves_to_the_other_library(text: str) -> None:
    """Lone surrogates, what has to be normalized, and what is very long."""
    assert OURS["tiny-qwen3-vl"].encode(text) is None


@pytest.mark.parametrize("piece", [" ", "\n", "a", "!", "1", "é", " \n"])
def test_bears_the_longest_text_of_one_kind(piece: str) -> None:
    text = (piece * MAX_CHARS)[:MAX_CHARS]

    assert OURS["tiny-qwen3-vl"].encode(text) == theirs("tiny-qwen3-vl", text)


def changed(**parts):
    whole = copy.deepcopy(FILES["tiny-qwen3-vl"])
    for path, value in parts.items():
        *outer, last = path.split("__")
        place = whole
        for key in outer:
            place = place[int(key) if key.isdecimal() else key]
        place[last] = value
    return whole


def swapped() -> list:
    merges = list(FILES["tiny-qwen3-vl"]["model"]["merges"])
    merges[10], merges[500] = merges[500], merges[10]
    return merges


@pytest.mark.parametrize(
    "parts",
    [
        {"model__dropout": 0.1},
        {"model__byte_fallback": True},
        {"model__merges": swapped()},
        {"model__merges": FILES["tiny-qwen3-vl"]["model"]["merges"][:-1]},
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer__pretokenizers__0__pattern": {"Regex": r"\s+|\S+"}},
        {"pre_tokenizer__pretokenizers__0__invert": True},
        {"pre_tokenizer__pretokenizers__1__add_prefix_space": True},
        {"added_tokens__0__lstrip": True},
        {"added_tokens__0__content": "<|im_end|>x"},
        {"truncation": {"max_length": 5, "stride": 0, "strategy": "LongestFirst"}},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_takes_no_tokenizer_that_might_differ(parts) -> None:
    assert ranked_bpe(changed(**parts)) is None


def test_takes_no_sentence_piece() -> None:
    assert ranked_bpe(orjson.loads((MODELS / "tiny-llava" / "tokenizer.json").read_bytes())) is None
