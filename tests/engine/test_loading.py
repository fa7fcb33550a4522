import json

import pytest
import torch
import transformers as hf

from runtime.errors import SettingsError
from runtime.settings import EngineSettings, ModelSettings
from schemas.errors import Transient
from tests.engine import tiny_models
from tests.engine.builders import MODELS
from workers.models.engine.assembly import create_engines
from workers.models.engine.inprocess import translate
from workers.models.engine.loading import complete_config, load_model

SETTINGS = EngineSettings(engine_threads=1)


def engines(folder, **settings):
    model = ModelSettings(model=str(folder), **settings)
    return create_engines(model, SETTINGS, encodes=True, generates=True)


def load(folder, dtype="auto"):
    return load_model(engines(folder).facts, dtype=dtype, needs_vision=True, needs_language=True)


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_facts_that_published_files_leave_out_are_the_model_types_defaults(tmp_path):
    """As the configuration of llava-1.5 is published: no hidden size."""
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "num_attention_heads": 16,
    }
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": 32000,
        "text_config": text,
        "vision_config": vision,
    }

    facts = engines(write_config(tmp_path, config)).facts

    assert (facts.hidden_size, facts.vocab_size, facts.embedding_width) == (4096, 32064, 4096)
    assert facts.config["image_token_id"] == 32000


def test_a_flat_configuration_of_an_older_vision_model_is_understood(tmp_path):
    config = hf.Qwen2_5_VLConfig().to_dict()
    text = config.pop("text_config")
    flat = {**text, **config, "architectures": ["Qwen2_5_VLForConditionalGeneration"]}

    facts = engines(write_config(tmp_path, flat)).facts

    assert facts.hidden_size == text["hidden_size"]
    assert facts.merge_size == 2
    assert facts.tokens_per_second


@pytest.mark.parametrize("model_type", ["qwen3_vl", "tiny"])
def test_the_width_of_an_embedding_counts_deep_stack_layers(model_type, tmp_path):
    if model_type == "tiny":
        assert engines(MODELS / "tiny-qwen3-vl").facts.embedding_width == 64 * 3
    else:
        tiny_models.saved(tiny_models.qwen3_vl, tmp_path)
        assert engines(tmp_path).facts.embedding_width == 32 * 3


def test_eos_ids_beside_the_tokenizers_are_stop_tokens():
    facts = engines(
        MODELS / "tiny-qwen3-vl", override_generation_config={"eos_token_id": [2002, 2000]}
    ).facts

    assert (facts.eos_token_id, facts.more_eos_ids) == (2002, (2000,))


def test_missing_weights_are_an_error_not_random_numbers(tmp_path):
    tiny_models.saved(tiny_models.llama, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, {**config, "num_hidden_layers": 5})

    with pytest.raises(SettingsError, match="lacks 18 weights"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["NoSuchModel"], "model_type": "llama"}, "NoSuchModel"),
        ({"model_type": "no_such_type"}, "no_such_type"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "cannot be loaded"),
        ({"model_type": "llama", "hidden_size": 10, "num_attention_heads": 3}, "not a multiple"),
    ],
)
def test_a_directory_that_cannot_be_served_is_refused_in_one_line(config, words, tmp_path):
    with pytest.raises(SettingsError, match=words) as error:
        load(write_config(tmp_path, config))

    assert "\n" not in str(error.value)


def test_dtypes_have_names(tmp_path):
    tiny_models.saved(tiny_models.llama, tmp_path)

    assert load(tmp_path).dtype_name == "float32"
    assert load(tmp_path, "half").dtype_name == "float16"
    assert load(tmp_path, "bfloat16").dtype_name == "bfloat16"
    with pytest.raises(SettingsError, match="int64"):
        load(tmp_path, "int64")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_lack_of_memory_may_be_over_in_a_moment(error):
    assert isinstance(translate(error), Transient)


def test_other_errors_stay_what_they_are():
    error = RuntimeError("shapes differ")

    assert translate(error) is error


def test_a_text_model_has_nothing_to_encode(tmp_path):
    tiny_models.saved(tiny_models.llama, tmp_path)
    model = ModelSettings(model=str(tmp_path))

    with pytest.raises(SettingsError, match="nothing to encode"):
        create_engines(model, SETTINGS, encodes=True, generates=False)


def test_the_configuration_is_read_without_the_network(tmp_path):
    with pytest.raises(SettingsError):
        complete_config(tmp_path / "nowhere" / "model")
