from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.text.segments import SegmentEncoder
from workers.text.tokenizer import Tokenizer

MODELS = Path(__file__).parent.parent / "data" / "models"
NAMES = ["tiny-qwen3-vl", "llama3-render", "tiny-llava"]
TOKENIZERS = {name: Tokenizer.from_directory(MODELS / name) for name in NAMES}
ENCODERS = {name: SegmentEncoder(TOKENIZERS[name], max_chars=600) for name in NAMES}

TOKENS = ["<|im_end|>", "<|eot_id|>", "<|im_start|>", "<|im_end", "|>", "</s>", "<"]
WORDS = [
    "é",
    "e\u0301",
    "\u0301",
    "'s",
    "123",
    "word " * 12,
    "A turn long enough to remember, so. ",
]
pieces = st.sampled_from([*TOKENS, *WORDS, " ", "\n", "  \n "])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150)
@given(text=st.lists(pieces | st.text(max_size=4), max_size=12).map("".join))
def test_turn_by_turn_gives_the_ids_of_the_whole(name: str, text: str) -> None:
    """Also when turns come from memory, and while memory is forgotten."""
    expected = TOKENIZERS[name].encode(text, add_special_tokens=False)

    assert expected == ENCODERS[name].encode(text)
    assert expected == ENCODERS[name].encode(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiny-qwen3-vl", True), ("llama3-render", True), ("tiny-llava", False)],
)
def test_only_tokenizers_without_memory_of_their_own_are_cut(name: str, expected: bool) -> None:
    """SentencePiece puts a space in front of a text: its turns are no texts of their own."""
    assert ENCODERS[name].is_active is expected


def test_a_renamed_end_of_turn_is_still_one() -> None:
    renamed = TOKENIZERS["tiny-qwen3-vl"].renamed({"<|im_end|>": "\ufdd0end\ufdd1"})
    encoder = SegmentEncoder(renamed)
    text = "a turn that is long enough to be remembered, it seems\ufdd0end\ufdd1b<|im_end|>"

    assert encoder.is_active
    assert renamed.encode(text, add_special_tokens=False) == encoder.encode(text)


def test_memory_is_bounded() -> None:
    encoder = SegmentEncoder(TOKENIZERS["tiny-qwen3-vl"], max_chars=1000)

    for number in range(100):
        encoder.encode(f"{number} " * 50 + "<|im_end|>")

    assert sum(map(len, encoder._known)) == encoder._chars <= 1000


def test_threads_share_one_encoder() -> None:
    encoder = SegmentEncoder(TOKENIZERS["tiny-qwen3-vl"], max_chars=500)
    texts = [f"{n % 7} words and more words for a longer turn<|im_end|>x" * 3 for n in range(200)]

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(encoder.encode, texts))

    tokenizer = TOKENIZERS["tiny-qwen3-vl"]
    assert ids == tokenizer.encode_batch(texts, add_special_tokens=False)
