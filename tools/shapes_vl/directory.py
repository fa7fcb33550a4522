"""Writes the files of the model directory: tokenizer, template, configurations, weights."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from . import pixels
from .dialogues import training_group
from .drawing import random_other, random_scene
from .prompts import Prompter

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Qwen's split of text into words, single digits, punctuation and white space.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCAB_SIZE = 1024
MAX_LENGTH = 16384  # tokens
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CARD = Path(__file__).with_name("model_card.md")


def write_tokenizer(directory: Path, seed: int) -> None:
    """Trains the byte-level BPE on the generator's prompts; the chat template goes beside it."""
    shutil.copyfile(TEMPLATE, directory / "chat_template.jinja")
    tokenizer = _untrained_tokenizer()
    _save(tokenizer, directory)  # marks only: enough for Prompter to render the corpus
    prompter = Prompter(directory)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer = _untrained_tokenizer()
    tokenizer.train_from_iterator(_corpus(prompter, seed), trainer)
    _save(tokenizer, directory)


def _untrained_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _save(tokenizer: Tokenizer, directory: Path) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    tokenizer.save(str(directory / "tokenizer.json"))


def _corpus(prompter: Prompter, seed: int) -> Iterator[str]:
    """Prompts and answers with the marks cut out: the marks are tokens of their own."""
    rng = random.Random(f"corpus {seed}")
    for index in range(3000):
        scenes = tuple(random_scene(rng) for _ in range((1, 1, 2, 0)[index % 4]))
        if index % 16 == 1:
            scenes = (random_other(rng),)
        for example in training_group(rng, scenes, tools=index % 5 == 0)[:2]:
            text = prompter.text(example) + example.answer
            for mark in SPECIAL + MARKS:
                text = text.replace(mark, "\x00")
            yield from text.split("\x00")


def write_settings(directory: Path) -> None:
    """Everything but tokenizer, template and weights."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    turn_end, text_end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    _write(directory / "tokenizer_config.json", {
        "backend": "tokenizers",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": MAX_LENGTH,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "Qwen3VLProcessor",
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
    })  # fmt: skip
    _write(directory / "generation_config.json", {
        "bos_token_id": text_end,
        "pad_token_id": text_end,
        "eos_token_id": [turn_end, text_end],
        "do_sample": False,
    })  # fmt: skip
    common = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": pixels.MERGE,
        "patch_size": pixels.PATCH,
        "temporal_patch_size": 2,
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": pixels.LONGEST_EDGE, "shortest_edge": pixels.SHORTEST_EDGE},
    }
    _write(
        directory / "preprocessor_config.json",
        {**common, "image_processor_type": "Qwen2VLImageProcessorFast"},
    )
    _write(directory / "video_preprocessor_config.json", {
        **common,
        "video_processor_type": "Qwen3VLVideoProcessor",
        "do_sample_frames": True,
        "fps": 2,
        "min_frames": 4,
        "max_frames": 64,
        "size": {"longest_edge": 16 * pixels.LONGEST_EDGE, "shortest_edge": pixels.SHORTEST_EDGE},
    })  # fmt: skip
    shutil.copyfile(CARD, directory / "README.md")


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def model_config(directory: Path) -> Qwen3VLConfig:
    """The configuration of the network, with the token ids of the directory's tokenizer."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = {text: tokenizer.token_to_id(text) for text in SPECIAL}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": MAX_LENGTH,
            "rope_theta": 1e5,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [6, 5, 5],
                "rope_type": "default",
            },
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={
            "depth": 4,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_heads": 3,
            "patch_size": pixels.PATCH,
            "spatial_merge_size": pixels.MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": 128,
            "num_position_embeddings": 64,  # an 8 x 8 grid, the patches of a square picture
            "deepstack_visual_indexes": [1, 2],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    return config


def save_weights(model: Qwen3VLForConditionalGeneration, directory: Path) -> None:
    """Half-precision weights and config.json; `model` keeps its own precision."""
    # The generation settings are ours (write_settings); save_pretrained would replace them.
    kept = (directory / "generation_config.json").read_text("utf-8")
    copy = Qwen3VLForConditionalGeneration(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.float16).save_pretrained(directory)
    (directory / "generation_config.json").write_text(kept, encoding="utf-8")
