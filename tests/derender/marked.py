"""A model folder whose tokenizer has the marks of every parser as tokens."""

import json
import shutil
from pathlib import Path

from .recordings import DATA

BASE = DATA / "models" / "tiny-qwen3-thinking"
MARKS = (
    "<|python_tag|>", "[TOOL_CALLS]", "[THINK]", "[/THINK]", "<|tool_call|>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|user|>", "<|assistant|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip


def write_marked_model(folder: Path, *, more: tuple[str, ...] = ()) -> Path:
    """`more`: further tokens, for a model of a newer kind."""
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    first = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    form = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [
        form | {"id": first + number, "content": mark} for number, mark in enumerate(MARKS + more)
    ]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return folder
