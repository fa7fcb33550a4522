"""Each family against transformers' own generate, on random weights."""

import pytest
import torch

from runtime.settings import EngineSettings, ModelSettings
from tests.engine import tiny_models
from tests.engine.builders import soon
from tests.engine.items import field_of
from workers.models.engine.assembly import create_engines
from workers.models.engine.protocol import (
    EncoderInput,
    GenerationRequest,
    GrowingGeneration,
    PlacedItem,
)
from workers.models.engine.sampling import Sampling

NUM_TOKENS = 12
TEXT = list(range(5, 17))


class Case:
    """Pixels of one item, as our encoder and as transformers takes them, and where its rows go."""

    def __init__(self, modality, pad, segments, ours, theirs, metadata, types="mm_token_type_ids"):
        self.modality, self.pad, self.ours, self.theirs = modality, pad, ours, theirs
        self.metadata, self.types = metadata, types
        self.token_ids, self.runs = [], []
        for segment in segments:
            if isinstance(segment, int):
                self.runs.append((len(self.token_ids), segment))
                self.token_ids += [pad] * segment
            else:
                self.token_ids += segment


def qwen_image(patch_width):
    pixels, grid = torch.rand(32, patch_width), torch.tensor([1, 4, 8])
    return Case(
        "image", 290, [TEXT, 8, TEXT[:5]],
        {"pixel_values": field_of(pixels), "image_grid_thw": field_of(grid)},
        {"pixel_values": pixels, "image_grid_thw": grid[None]},
        {"image_grid_thw": [1, 4, 8]},
    )  # fmt: skip


def qwen_video(patch_width, segments, **seconds):
    frames = sum(s for s in segments if isinstance(s, int)) // 4
    pixels, grid = torch.rand(frames * 16, patch_width), torch.tensor([frames, 4, 4])
    theirs = {"pixel_values_videos": pixels, "video_grid_thw": grid[None]}
    return Case(
        "video", 291, segments,
        {"pixel_values_videos": field_of(pixels), "video_grid_thw": field_of(grid)},
        theirs | {name: torch.tensor([value]) for name, value in seconds.items()},
        {"video_grid_thw": grid.tolist(), **seconds},
    )  # fmt: skip


def gemma_image():
    pixels = torch.rand(2, 3, 56, 56)
    return Case(
        "image", 290, [TEXT, 4, TEXT[:2], 4, TEXT[:5]],
        {"pixel_values": field_of(pixels), "num_patches": field_of(torch.tensor(2))},
        {"pixel_values": pixels}, {"num_patches": 2}, types="token_type_ids",
    )  # fmt: skip


def llava_image():
    pixels = torch.rand(3, 56, 56)
    return Case(
        "image", 290, [TEXT, 16, TEXT[:5]],
        {"pixel_values": field_of(pixels)}, {"pixel_values": pixels[None]}, {}, types=None,
    )  # fmt: skip


QWEN3_VIDEO = [TEXT, 4, TEXT[:2], 4, TEXT[:3], 4, TEXT[:4]]
CASES = {
    "qwen2_vl image": (tiny_models.qwen2_vl, lambda: qwen_image(1176)),
    "qwen2_vl video": (tiny_models.qwen2_vl, lambda: qwen_video(1176, [TEXT, 8, TEXT[:5]])),
    "qwen2_5_vl image": (tiny_models.qwen2_5_vl, lambda: qwen_image(1176)),
    "qwen2_5_vl video": (
        tiny_models.qwen2_5_vl,
        lambda: qwen_video(1176, [TEXT, 8, TEXT[:5]], second_per_grid_ts=0.5),
    ),
    "qwen3_vl image": (tiny_models.qwen3_vl, lambda: qwen_image(1536)),
    "qwen3_vl video": (tiny_models.qwen3_vl, lambda: qwen_video(1536, QWEN3_VIDEO)),
    "qwen3_vl_moe image": (tiny_models.qwen3_vl_moe, lambda: qwen_image(1536)),
    "gemma3 image": (tiny_models.gemma3, gemma_image),
    "llava image": (tiny_models.llava, llava_image),
}


async def ours(folder, token_ids, case=None):
    model = ModelSettings(model=str(folder), generation_config="vllm")
    engines = create_engines(
        model, EngineSettings(engine_threads=1), encodes=case is not None, generates=True
    )
    items = ()
    if case is not None:
        await engines.encoder.start()
        (embedding,) = await engines.encoder.encode(
            [EncoderInput(case.modality, "hash", case.ours)], deadline_ms=soon()
        )
        await engines.encoder.close()
        runs = tuple(case.runs)
        assert engines.facts.num_rows(case.modality, case.metadata) in (None, embedding.shape[0])
        items = (PlacedItem(case.modality, "hash", runs, embedding, case.metadata),)
    await engines.engine.start()
    sampling = Sampling.of_wire({"temperature": 0, "ignore_eos": True, "logprobs": 0})
    whole = GrowingGeneration(1)
    async for progress in engines.engine.generate(
        GenerationRequest("id", tuple(token_ids), items, sampling, NUM_TOKENS, (1,), soon())
    ):
        whole.add(progress)
    await engines.engine.close()
    (choice,) = whole.so_far().choices
    return list(choice.token_ids), [row[0].logprob for row in choice.logprobs]


def theirs(model, token_ids, **inputs):
    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
            max_new_tokens=NUM_TOKENS, eos_token_id=None, pad_token_id=0,
            output_scores=True, return_dict_in_generate=True, **inputs,
        )  # fmt: skip
    tokens = found.sequences[0, len(token_ids) :].tolist()
    scores = zip(found.scores, tokens, strict=True)
    return tokens, [float(s[0].float().log_softmax(-1)[token]) for s, token in scores]


@pytest.mark.parametrize("name", CASES)
async def test_a_picture_is_understood_as_transformers_does(name, tmp_path):
    make_model, make_case = CASES[name]
    torch.manual_seed(0)
    case = make_case()
    model = tiny_models.saved(make_model, tmp_path)
    pads = torch.tensor([case.token_ids]) == case.pad
    types = {case.types: pads.long() * (2 if case.modality == "video" else 1)} if case.types else {}

    expected, scores = theirs(model, case.token_ids, **case.theirs, **types)
    tokens, logprobs = await ours(tmp_path, case.token_ids, case)

    assert tokens == expected
    assert len(set(tokens)) > 1, "a model that repeats itself shows nothing"
    assert logprobs == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("chunk", [512, 5])
@pytest.mark.parametrize("make_model", [tiny_models.llama, tiny_models.gemma2])
async def test_text_models_continue_as_transformers_does(make_model, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("workers.models.engine.language.CHUNK_TOKENS", chunk)
    model = tiny_models.saved(make_model, tmp_path)

    expected, scores = theirs(model, TEXT * 3)
    tokens, logprobs = await ours(tmp_path, TEXT * 3)

    assert tokens == expected
    assert logprobs == pytest.approx(scores, abs=1e-4)


async def test_half_a_model_is_loaded_where_one_half_is_used(tmp_path):
    tiny_models.saved(tiny_models.qwen3_vl, tmp_path)
    model, settings = ModelSettings(model=str(tmp_path)), EngineSettings(engine_threads=1)
    encoding = create_engines(model, settings, encodes=True, generates=False)
    await encoding.encoder.start()

    names = {name for name, _ in encoding.encoder._loaded.module.named_parameters()}
    await encoding.encoder.close()

    assert encoding.engine is None
    assert names
    assert all(name.startswith("model.visual.") for name in names)
