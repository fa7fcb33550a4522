"""Exact-match accuracy on fresh pictures and questions, with transformers' own greedy generate."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import Qwen3VLForConditionalGeneration

from . import drawing, pixels
from .dialogues import KINDS, Example, evaluation_example, scene_count
from .prompts import TEXT_END, Prompter

JPEG_QUALITY = 70
LONGEST_ANSWER = 110  # tokens; the longest wanted answer is a thought about two pictures
_BATCH = 50  # questions per generate call


@dataclass(frozen=True)
class Case:
    """One question with its pictures: patches uint8 [P, 768] and grids (rows, columns)."""

    kind: str
    example: Example
    pictures: list[tuple[torch.Tensor, tuple[int, int]]]

    @property
    def image_sizes(self) -> list[int]:
        """Tokens of each picture."""
        return [rows * columns // pixels.MERGE**2 for _, (rows, columns) in self.pictures]


def fresh_case(kind: str, seed: int, number: int) -> Case:
    """Question `number` of a kind; pictures of 96..1024 pixels, every other one a JPEG."""
    rng = random.Random(f"evaluation {seed} {kind} {number}")
    make = drawing.random_other if kind == "other" else drawing.random_scene
    scenes = tuple(make(rng) for _ in range(scene_count(kind)))
    pictures = []
    for scene in scenes:
        image = drawing.draw(scene, drawing.random_size(rng), rng)
        if rng.random() < 0.5:
            image = drawing.through_jpeg(image, JPEG_QUALITY)
        pictures.append(pixels.patchify(image))
    return Case(kind, evaluation_example(rng, kind, scenes), pictures)


def run(
    directory: Path, count: int, seed: int, kinds: Iterable[str] = KINDS, show: int = 0
) -> None:
    """Prints the accuracy of each kind over `count` questions; the last line sums up."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
    prompter = Prompter(directory)
    shares = {}
    for kind in tqdm(list(kinds), desc="evaluation"):
        cases = [fresh_case(kind, seed, number) for number in range(count)]
        cases.sort(key=lambda case: len(prompter.prompt_tokens(case.example, case.image_sizes)))
        wrong = []
        for start in range(0, count, _BATCH):
            part = cases[start : start + _BATCH]
            given = answers(model, prompter, part)
            wrong += [
                (c, text) for c, text in zip(part, given, strict=True) if text != c.example.answer
            ]
        shares[kind] = 100 * (1 - len(wrong) / count)
        tqdm.write(f"{kind:<10} {shares[kind]:5.1f} %")
        for case, given_text in wrong[:show]:
            tqdm.write(f"    {_question(case.example)!r}")
            tqdm.write(f"    wanted {case.example.answer!r}\n    given  {given_text!r}")
    overall = sum(shares.values()) / len(shares)
    print(f"overall {overall:.1f} % weakest {min(shares.values()):.1f} %")


def _question(example: Example) -> str:
    content = example.messages[-1]["content"]
    return (
        content
        if isinstance(content, str)
        else " ".join(part.get("text", "[picture]") for part in content)
    )


@torch.inference_mode()
def answers(
    model: Qwen3VLForConditionalGeneration, prompter: Prompter, cases: list[Case]
) -> list[str]:
    """The model's greedy answers with their think and tool marks, without the end of the turn."""
    prompts = [prompter.prompt_tokens(case.example, case.image_sizes) for case in cases]
    longest = max(map(len, prompts))
    padding = prompter.tokenizer.token_to_id(TEXT_END)
    tokens = torch.tensor([[padding] * (longest - len(prompt)) + prompt for prompt in prompts])
    seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    pictures = [picture for case in cases for picture in case.pictures]
    vision = {}
    if pictures:
        vision = {
            "pixel_values": torch.cat([pixels.with_frames(patches) for patches, _ in pictures]),
            "image_grid_thw": torch.tensor([[1, *grid] for _, grid in pictures]),
            "mm_token_type_ids": (tokens == prompter.image_pad).int(),
        }
    output = model.generate(
        input_ids=tokens, attention_mask=seen, **vision,
        max_new_tokens=LONGEST_ANSWER, do_sample=False,
        eos_token_id=prompter.turn_end, pad_token_id=padding,
    )  # fmt: skip
    return [_text(prompter, row[longest:].tolist()) for row in output]


def _text(prompter: Prompter, tokens: list[int]) -> str:
    if prompter.turn_end in tokens:
        tokens = tokens[: tokens.index(prompter.turn_end)]
    return prompter.tokenizer.decode(tokens, skip_special_tokens=False)
