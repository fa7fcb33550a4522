from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import SettingsError
from schemas.errors import ApiError
from workers.text.ranked_bpe import MAX_CHARS, MAX_PIECE_CHARS
from workers.text.tokenizer import Tokenizer
from workers.text.tokenizer_files import read_tokenizer_files

MODELS = Path(__file__).parent.parent / "data" / "models"
NAMES = ["tiny-qwen3-vl", "tiny-qwen3-thinking", "llama3-render", "tiny-llava"]

TOKENIZERS = {name: Tokenizer.from_directory(MODELS / name) for name in NAMES}
for each in TOKENIZERS.values():
    each.warm()
every_model = pytest.mark.parametrize("name", NAMES)
texts = st.text(max_size=40) | st.lists(
    st.sampled_from(["<|im_start|>", "<s>", "</s>", "<image>", " ", "\n", "é", "hello", "1234"])
).map("".join)


@every_model
@settings(max_examples=25)
@given(text=texts)
def test_every_way_to_encode_gives_the_same_ids(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]

    ids = tokenizer.encode(text, add_special_tokens=True)

    assert ids == tokenizer.encode_batch([text], add_special_tokens=True)[0]
    assert ids == tokenizer.encode_with_offsets(text, add_special_tokens=True)[0]


@every_model
@settings(max_examples=25, deadline=None)  # a tokenizer is built for each
@given(text=texts)
def test_a_renamed_token_changes_nothing_but_its_own_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    (old, token), *_ = [(t, i) for t, i in tokenizer.added_tokens.items() if t not in text]
    new = "﷐renamed﷑"

    renamed = tokenizer.renamed({old: new})

    plain = tokenizer.encode(text, add_special_tokens=False)
    assert plain == renamed.encode(text, add_special_tokens=False)
    assert token in renamed.encode(text + new, add_special_tokens=False)
    assert token not in renamed.encode(text + old, add_special_tokens=False)


@every_model
def test_long_texts_are_encoded_like_short_ones(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = "Once upon a time, don't you know? 12345\n" * 4000

    ids = tokenizer.encode(text, add_special_tokens=True)

    assert ids == tokenizer.encode_with_offsets(text, add_special_tokens=True)[0]


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "llama3-render"])
@pytest.mark.parametrize("end", ["e\u0301", "<|im_end|>", "", "\n\n x"])
def test_long_texts_are_cut_whatever_is_in_them(name: str, end: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = "a" * (MAX_CHARS + 9) + f" é {end}" * 9000 + "<|eot_id|>" + end

    for special in (True, False):
        ids = tokenizer.encode(text, add_special_tokens=special)

        assert ids == tokenizer.encode_with_offsets(text, add_special_tokens=special)[0]


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "llama3-render"])
@pytest.mark.parametrize("text", [" " * 12_000_000, "a" * (MAX_PIECE_CHARS + 1)])
def test_too_long_a_run_is_refused(name: str, text: str) -> None:
    with pytest.raises(ApiError, match="too long a run"):
        TOKENIZERS[name].encode(text, add_special_tokens=True)


def test_a_panic_of_the_library_is_an_error_like_others() -> None:
    cold = Tokenizer.from_directory(MODELS / "llama3-render")

    with pytest.raises(ApiError, match="too long a run"):
        cold.encode(" " * 12_000_000, add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiny-qwen3-vl", (0, 0)), ("llama3-render", (1, 0)), ("tiny-llava", (1, 0))],
)
def test_tells_how_many_special_tokens_are_added(name: str, expected: tuple[int, int]) -> None:
    assert expected == TOKENIZERS[name].num_added


def test_special_tokens_are_known_by_name_and_by_flag() -> None:
    tokenizer = TOKENIZERS["tiny-qwen3-vl"]

    assert tokenizer.special_tokens["image_token"] == "<|image_pad|>"
    assert tokenizer.eos_id == tokenizer.added_tokens["<|im_end|>"]
    assert tokenizer.bos_id is None
    assert tokenizer.added_tokens["<|im_end|>"] in tokenizer.special_ids
    assert tokenizer.added_tokens["<tool_call>"] not in tokenizer.special_ids


def test_decoding_leaves_out_special_tokens_where_asked() -> None:
    tokenizer = TOKENIZERS["tiny-qwen3-vl"]
    ids = tokenizer.encode("a<|im_end|>b", add_special_tokens=False)

    assert tokenizer.decode(ids) == "a<|im_end|>b"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert tokenizer.decode([10**6]) == ""


def test_the_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    _copy("tiny-llava", tmp_path, '{"chat_template": "from the configuration"}')
    assert read_tokenizer_files(tmp_path).chat_templates == {"default": "from the configuration"}

    (tmp_path / "chat_template.jinja").write_text("from the file")

    assert read_tokenizer_files(tmp_path).chat_templates == {"default": "from the file"}


def test_templates_may_have_names(tmp_path: Path) -> None:
    named = '[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]'
    _copy("tiny-llava", tmp_path, f'{{"chat_template": {named}}}')

    assert read_tokenizer_files(tmp_path).chat_templates == {"default": "d", "tool_use": "t"}


def test_a_processor_may_bring_its_own_template(tmp_path: Path) -> None:
    _copy("tiny-llava", tmp_path, "{}")
    (tmp_path / "chat_template.json").write_text('{"chat_template": "p"}')

    assert read_tokenizer_files(tmp_path).processor_template == "p"


def test_named_tokens_that_the_file_lacks_are_added(tmp_path: Path) -> None:
    extra = '{"eos_token": {"content": "<new>"}, "additional_special_tokens": ["<other>"]}'
    _copy("tiny-llava", tmp_path, extra)

    tokenizer = Tokenizer.from_directory(tmp_path)

    assert tokenizer.eos_id in tokenizer.special_ids
    ids = tokenizer.encode("a<new><other>", add_special_tokens=False)
    assert ids[-2:] == [tokenizer.added_tokens["<new>"], tokenizer.added_tokens["<other>"]]


def test_llama_tokenizers_prefix_a_space_to_the_first_chunk_only(tmp_path: Path) -> None:
    """The class counts, not what tokenizer.json says of normalization."""
    _copy("tiny-llava", tmp_path, '{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    tokenizer = Tokenizer.from_directory(tmp_path)

    ids = tokenizer.encode("a</s>a", add_special_tokens=False)
    assert tokenizer.piece(ids[0]) == "▁a"
    assert tokenizer.piece(ids[-1]) == "a"


def test_a_directory_without_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has no"):
        Tokenizer.from_directory(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')

    with pytest.raises(SettingsError, match="cannot be used"):
        Tokenizer.from_directory(tmp_path)


def test_renaming_what_is_no_token_is_refused() -> None:
    with pytest.raises(SettingsError, match="no added tokens"):
        TOKENIZERS["tiny-llava"].renamed({"<|image_pad|>": "x"})


def _copy(model: str, folder: Path, config: str) -> None:
    (folder / "tokenizer.json").write_bytes((MODELS / model / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(config)
