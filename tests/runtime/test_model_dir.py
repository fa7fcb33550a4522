"""What is read from a model directory's JSON files, and what is refused."""

import json
from pathlib import Path

import pytest

from runtime.errors import SettingsError
from runtime.model_dir import read_model
from runtime.settings import ModelSettings

TEXT = {"model_type": "qwen3", "vocab_size": 2048, "max_position_embeddings": 8192}


def model(folder: Path, config: object = TEXT, **settings: object):
    (folder / "config.json").write_text(json.dumps(config))
    return read_model(ModelSettings.model_validate({"model": str(folder), **settings}))


def test_lengths_and_vocabulary_come_from_the_configuration(tmp_path: Path):
    directory = model(tmp_path)

    assert (directory.max_model_len, directory.vocab_size) == (8192, 2048)
    assert directory.served_names == (str(tmp_path),)


def test_a_nested_text_configuration_counts(tmp_path: Path):
    directory = model(tmp_path, {"model_type": "qwen3_vl", "text_config": TEXT})

    assert (directory.model_type, directory.vocab_size) == ("qwen3_vl", 2048)


def test_keys_that_published_files_leave_out_have_their_types_default(tmp_path: Path):
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}

    directory = model(tmp_path, config)

    assert (directory.max_model_len, directory.vocab_size) == (131072, 262208)


def test_the_tokenizers_limit_shortens_the_context(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 4096}))

    assert model(tmp_path).max_model_len == 4096


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 32768),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"rope_type": "default"}, 8192),
        (None, 8192),
    ],
)
def test_rotary_scaling_lengthens_the_context_unless_it_is_counted(tmp_path: Path, rope, length):
    assert model(tmp_path, TEXT | {"rope_scaling": rope}).max_model_len == length


def test_a_shorter_context_may_be_asked_for_but_no_longer_one(tmp_path: Path):
    assert model(tmp_path, max_model_len=100).max_model_len == 100
    with pytest.raises(SettingsError, match="--max-model-len 9000 is greater than the 8192"):
        model(tmp_path, max_model_len=9000)


@pytest.mark.parametrize("content", ["{", "[]", "nul"])
def test_a_broken_configuration_is_named(tmp_path: Path, content: str):
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(SettingsError, match=r"config\.json"):
        read_model(ModelSettings(model=str(tmp_path)))


def test_a_folder_without_configuration_is_no_model(tmp_path: Path):
    with pytest.raises(SettingsError, match="not a model directory"):
        read_model(ModelSettings(model=str(tmp_path)))


def test_a_missing_folder_is_told_apart_from_a_download(tmp_path: Path):
    with pytest.raises(SettingsError, match="nothing is downloaded"):
        read_model(ModelSettings(model="Qwen/Qwen3-VL-2B-Instruct"))
