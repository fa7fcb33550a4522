"""What families say about prompts and sizes, without any pixels."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import SettingsError
from schemas.errors import ApiError
from schemas.mm_item import Field, Tensor
from tests.models_media.builders import LLAVA, QWEN, make_model_folder
from workers.models.families import build_family, describe, read_files, resolve_dtype
from workers.models.families.adapter import Family, ModelFiles, VideoFacts
from workers.models.families.gemma3 import Gemma3
from workers.models.families.qwen3_vl import Qwen3VL
from workers.models.families.qwen_sizes import smart_resize


class Letters:
    """A vocabulary in which a token is a character, or a run of newlines."""

    def encode(self, text: str, /, *, add_special_tokens: bool) -> Sequence[int]:
        assert not add_special_tokens
        out: list[int] = []
        while text:
            lines = len(text) - len(text.lstrip("\n"))
            out.append(10 + lines if lines else ord(text[0]))
            text = text[max(lines, 1) :]
        return out

    def token_id(self, piece: str, /) -> int | None:
        return 10 + len(piece) if set(piece) == {"\n"} else None


QWEN_CONFIG = {
    "model_type": "qwen3_vl", "image_token_id": 1, "video_token_id": 2,
    "vision_start_token_id": 3, "vision_end_token_id": 4,
}  # fmt: skip


def make_qwen3(**processor: Any) -> Qwen3VL:
    files = ModelFiles(QWEN_CONFIG, processor, processor, {}, "bfloat16")
    return Qwen3VL(files, Letters(), server_options={}, raw_pixels=True)


def make_gemma(**server_options: Any) -> Gemma3:
    config = {"boi_token_index": 1, "image_token_index": 2, "eoi_token_index": 3}
    files = ModelFiles(config, {"size": {"height": 8, "width": 8}}, {}, {"image_seq_length": 4}, "")
    return Gemma3(files, Letters(), server_options=server_options)


def tensor_of(field: Field) -> list[int]:
    assert isinstance(field.data, Tensor)
    return list(memoryview(field.data.data).cast("q"))


class TestRegistry:
    def test_facts_are_read_without_torch(self) -> None:
        code = (
            "import sys; from workers.models.families import describe;"
            f"facts = describe({str(QWEN)!r}); assert facts.family == 'qwen3_vl';"
            "assert not {'torch', 'numpy', 'PIL', 'av', 'transformers'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_facts_tell_which_modalities_have_metadata(self) -> None:
        assert describe(QWEN).with_metadata == {"image", "video"}
        assert describe(LLAVA).with_metadata == frozenset()
        assert set(describe(LLAVA).modalities) == {"image"}

    def test_a_text_only_model_has_no_media(self, tmp_path: Path) -> None:
        folder = make_model_folder(tmp_path / "m", config={"model_type": "llama"})

        assert describe(folder).modalities == {}
        assert _build(folder) is None

    def test_a_family_nobody_wrote_an_adapter_for_is_refused(self, tmp_path: Path) -> None:
        config = {"model_type": "strange_vl", "vision_config": {"hidden_size": 1}}
        folder = make_model_folder(tmp_path / "m", config=config)

        with pytest.raises(SettingsError, match=r"'strange_vl'; supported: gemma3, llava, qwen2"):
            describe(folder)

    def test_a_llava_with_an_unknown_tower_is_refused(self, tmp_path: Path) -> None:
        config = {
            "model_type": "llava", "image_token_index": 5,
            "vision_config": {"model_type": "pixtral", "image_size": 8, "patch_size": 2},
        }  # fmt: skip
        folder = make_model_folder(tmp_path / "m", config=config)

        with pytest.raises(SettingsError, match="pixtral"):
            _build(folder)

    @pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
    def test_every_qwen_is_built(self, model_type: str, tmp_path: Path) -> None:
        config = {**QWEN_CONFIG, "model_type": model_type}
        family = _build(make_model_folder(tmp_path / "m", config=config))

        assert family is not None
        assert family.placeholder("image", 0) == "<|vision_start|><|image_pad|><|vision_end|>"
        assert (family.target("image"), family.target("video")) == (1, 2)

    def test_nested_processor_files_win(self, tmp_path: Path) -> None:
        folder = make_model_folder(tmp_path / "m", config={}, preprocessor={"patch_size": 1})
        assert read_files(folder, {}, "auto").video_processor == {"patch_size": 1}

        (folder / "processor_config.json").write_text('{"image_processor": {"patch_size": 2}}')
        assert read_files(folder, {}, "auto").image_processor == {"patch_size": 2}

    @pytest.mark.parametrize(
        ("config", "asked", "expected"),
        [
            ({"dtype": "float32"}, "auto", "bfloat16"),
            ({"torch_dtype": "float16"}, "auto", "float16"),
            ({"text_config": {"dtype": "bfloat16"}}, "auto", "bfloat16"),
            ({}, "auto", "bfloat16"),
            ({"model_type": "gemma3", "dtype": "float16"}, "auto", "bfloat16"),
            ({"dtype": "bfloat16"}, "float32", "float32"),
            ({"dtype": "bfloat16"}, "half", "float16"),
        ],
    )
    def test_the_dtype_of_floats_is_the_models(
        self, config: dict[str, Any], asked: str, expected: str
    ) -> None:
        assert resolve_dtype(config, asked) == expected


def _build(folder: Path) -> Family | None:
    return build_family(folder, Letters(), dtype="auto", server_options={}, raw_pixels=True)


class TestQwen:
    @settings(deadline=None)
    @given(
        height=st.integers(1, 3000), width=st.integers(1, 3000),
        least=st.integers(1024, 100_000), more=st.integers(1, 20),
    )  # fmt: skip
    def test_sizes_fit_the_patches_and_the_bounds(
        self, height: int, width: int, least: int, more: int
    ) -> None:
        if max(height, width) / min(height, width) > 200:
            return
        high, wide = smart_resize(height, width, 32, least, least * (more + 3))

        assert high > 0
        assert wide > 0
        assert high % 32 == wide % 32 == 0

    def test_options_cannot_enlarge_without_end(self) -> None:
        with pytest.raises(ApiError, match="pixels are asked for"):
            smart_resize(30, 40, 32, 10**9, 10**10)

    def test_old_processor_files_name_pixels_instead_of_a_size(self) -> None:
        family = make_qwen3(min_pixels=1024, max_pixels=4096)

        assert family.options("image", {})["size"] == {"shortest_edge": 1024, "longest_edge": 4096}

    def test_the_requests_spelling_wins_over_the_operators(self) -> None:
        files = ModelFiles(QWEN_CONFIG, {}, {}, {}, "bfloat16")
        operator = {"size": {"longest_edge": 100_000}}
        family = Qwen3VL(files, Letters(), server_options=operator, raw_pixels=True)

        options = family.options("image", {"max_pixels": 50_000})
        assert options["size"]["longest_edge"] == 50_000

    def test_scoped_options_win_over_flat_ones(self) -> None:
        request = {"max_pixels": 50_000, "images_kwargs": {"max_pixels": 20_000}}

        assert make_qwen3().options("image", request)["size"]["longest_edge"] == 20_000

    def test_wishes_to_normalise_are_ignored_where_the_encoder_does(self) -> None:
        assert make_qwen3().options("image", {"do_normalize": True})["do_normalize"] is False

    def test_pads_are_one_per_merged_patch(self) -> None:
        family = make_qwen3(size={"shortest_edge": 1024, "longest_edge": 1 << 20})
        plan = family.plan_image(64, 96, family.options("image", {}))

        assert plan.replacement.runs == ((1, 6),)
        assert tensor_of(plan.metadata["image_grid_thw"]) == [1, 6, 4] or plan.shape == (96, 64)

    @pytest.mark.parametrize(
        ("total", "fps", "expected"),
        [(8, 4.0, [0, 2, 5, 7]), (3, 30.0, [0, 1, 2]), (1, 8.0, [0]), (40, 0.0, [0, 13, 26, 39])],
    )
    def test_frames_are_spread_evenly(self, total: int, fps: float, expected: list[int]) -> None:
        assert make_qwen3().sample_frames(total, fps, {}) == expected

    def test_times_of_an_odd_number_of_frames_repeat_the_last(self) -> None:
        family = make_qwen3(size={"shortest_edge": 1024, "longest_edge": 1 << 20})
        metadata = {
            "total_num_frames": 6, "fps": 2.0, "frames_indices": [0, 2, 5], "duration": 3.0,
            "do_sample_frames": False,
        }  # fmt: skip
        facts = VideoFacts(width=32, height=32, num_frames=3, metadata=metadata)

        plan = family.plan_video(facts, family.options("video", {}))

        assert plan.metadata["timestamps"].data == [0.5, 2.5]
        text = "".join(chr(token) for token in plan.replacement if token > 4)
        assert text == "<0.5 seconds><2.5 seconds>"
        assert plan.num_embeds == 2

    def test_lists_give_each_video_its_own_value(self) -> None:
        family = make_qwen3()
        options = family.options("video", {"fps": [1.0, 3.0]})

        assert family.for_item("video", options, 1, 2)[1] == {"fps": 3.0}
        with pytest.raises(ApiError, match="at least 3 entries"):
            family.for_item("video", options, 0, 3)


class TestGemma:
    def test_a_picture_is_more_than_its_embeddings(self) -> None:
        family = make_gemma()

        plan = family.plan_image(10, 10, family.options("image", {}))

        assert list(plan.replacement) == [12, 1, 2, 2, 2, 2, 3, 12]
        assert plan.embeds == [(2, 4)]

    def test_crops_are_pictures_of_their_own(self) -> None:
        family = make_gemma(do_pan_and_scan=True, pan_and_scan_min_crop_size=4)

        plan = family.plan_image(20, 10, family.options("image", {}))

        assert tensor_of(plan.metadata["num_patches"]) == [3]
        assert [count for _, count in plan.embeds or []] == [4, 4, 4]
        tokens = list(plan.replacement)
        assert all(tokens[s : s + n] == [2] * n for s, n in plan.embeds or [])

    def test_newlines_melt_at_the_edges(self) -> None:
        ids, ranges = make_gemma().settle([11, 12, 1, 2, 3, 12, 11, 65], [(1, 5)])

        assert ids == [13, 1, 2, 3, 13, 65]
        assert ranges == [(0, 5)]

    def test_neighbours_share_no_token(self) -> None:
        one = [12, 1, 2, 3, 12]
        ids, ranges = make_gemma().settle([65, *one, *one, 65], [(1, 5), (6, 5)])

        assert ids == [65, 12, 1, 2, 3, 14, 1, 2, 3, 12, 65]
        assert ranges == [(1, 4), (5, 5)]

    def test_without_newline_tokens_nothing_melts(self) -> None:
        class Poor(Letters):
            def token_id(self, piece: str, /) -> int | None:
                return None

        files = ModelFiles(
            {"boi_token_index": 1, "image_token_index": 2, "eoi_token_index": 3}, {}, {}, {}, ""
        )
        family = Gemma3(files, Poor(), server_options={})
        assert family.settle([11, 12], [(1, 1)]) == ([11, 12], [(1, 1)])
