"""Renders conversations with the model directory's own chat template and turns them into tokens."""

import json
from pathlib import Path

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer

from .dialogues import Example

IMAGE_PAD, TURN_END, TEXT_END = "<|image_pad|>", "<|im_end|>", "<|endoftext|>"


class Prompter:
    """The chat template and the tokenizer of one model directory."""

    def __init__(self, directory: Path):
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(
            (directory / "chat_template.jinja").read_text("utf-8")
        )
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.image_pad = self.tokenizer.token_to_id(IMAGE_PAD)
        self.turn_end = self.tokenizer.token_to_id(TURN_END)

    def text(self, example: Example) -> str:
        """The prompt up to the model's turn; one pad stands for each picture."""
        return self._template.render(
            messages=list(example.messages),
            tools=list(example.tools) or None,
            add_generation_prompt=True,
            enable_thinking=example.thinking,
        )

    def prompt_tokens(self, example: Example, image_sizes: list[int]) -> list[int]:
        """Prompt tokens with each picture's pad repeated to its number of tokens."""
        sizes = iter(image_sizes)
        tokens: list[int] = []
        for token in self.tokenizer.encode(self.text(example), add_special_tokens=False).ids:
            tokens.extend([token] * (next(sizes) if token == self.image_pad else 1))
        return tokens

    def answer_tokens(self, example: Example) -> list[int]:
        """Answer tokens with the end-of-turn token."""
        return [*self.tokenizer.encode(example.answer, add_special_tokens=False).ids, self.turn_end]
