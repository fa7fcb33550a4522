"""CPU-milliseconds that a token costs at different places of a stream with parsers.

    python bench/derender.py [--model DIR] [--tokens 8100]

The fleet's path keeps one `ChoiceStream` per choice; the stateless endpoint gets the state with
every chunk and answers with it. Both read one token at a time with hermes and qwen3: a third of the
output is reasoning, a third content, a third the arguments of a call.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runtime.model_dir import read_model
from runtime.settings import ModelSettings
from schemas.chat import ChatCompletionRequest
from schemas.limits import ModelLimits
from schemas.routes import Kind
from schemas.validation import parse_body
from workers.derender.answers import answer_bytes
from workers.derender.choice import ChoiceStream
from workers.derender.chunks import derender_chat_chunk
from workers.derender.model import TextModel, open_text_model
from workers.derender.parsed_chunks import KeptStreams

MODEL = Path(__file__).resolve().parent.parent / "tests/data/models/tiny-qwen3-thinking"
PLACES = (100, 1_000, 8_000)
AROUND = 50
"""Tokens on either side of a place that are timed for it."""
CHAT = {
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"type": "function", "function": {"name": "write", "parameters": {}}}],
}


def main() -> int:
    args = _arguments()
    model = _open(args.model)
    ids = _output(model, args.tokens)
    print(f"{len(ids)} tokens of {args.model.name}; ms of CPU per token, median around each place")
    for name, stepper in (("fleet", _fleet), ("stateless", _stateless)):
        times = _timed(stepper(model), ids)
        row = {place: _around(times, place) for place in PLACES if place <= len(times)}
        print(f"{name:10}", *(f"{place:>6}: {ms:.4f}" for place, ms in row.items()))
    return 0


def _open(path: Path) -> TextModel:
    settings = ModelSettings(
        model=str(path),
        reasoning_parser="qwen3",
        tool_call_parser="hermes",
        enable_auto_tool_choice=True,
    )
    directory = read_model(settings)
    limits = ModelLimits(
        max_model_len=32_768,
        vocab_size=directory.vocab_size,
        served_names=directory.served_names,
        max_logprobs=20,
    )
    return open_text_model(settings, directory, limits, "assistant")


def _output(model: TextModel, count: int) -> list[int]:
    words = "The quick brown fox jumps over the lazy dog, 北京 and ß. "

    def encode(text: str) -> list[int]:
        return model.tokenizer.encode(text, add_special_tokens=False)

    third = (encode(words) * count)[: count // 3]
    start = encode('<tool_call>{"name": "write", "arguments": {"text": "')
    return [*encode("<think>"), *third, *encode("</think>"), *third, *start, *third]


def _fleet(model: TextModel) -> Callable[[int], Any]:
    request = ChatCompletionRequest.model_validate(CHAT)
    stream = ChoiceStream(request, [1, 2, 3], model, request_id="r")
    return lambda token: stream.push([token])


def _stateless(model: TextModel) -> Callable[[int], Any]:
    kept, state = KeptStreams(), None

    def step(token: int) -> None:
        nonlocal state
        chunk = {"request_id": "r", "choices": [{"index": 0, "token_ids": [token]}]}
        body = {"stream": True, "generate_chunk": chunk, "stream_state": state}
        body |= {"chat_request": CHAT, "prompt_token_ids": [1, 2, 3]}
        raw = json.dumps(body).encode()
        started = time.process_time()
        request: Any = parse_body(Kind.CHAT_DERENDER, raw, model.limits)
        answered = answer_bytes(derender_chat_chunk(request, model, kept))
        step.spent = time.process_time() - started  # type: ignore[attr-defined]
        state = json.loads(answered)["stream_state"]

    return step


def _timed(step: Callable[[int], Any], ids: Sequence[int]) -> list[float]:
    """Milliseconds for each token; a step may tell itself what counts of it."""
    times = []
    for token in ids:
        started = time.process_time()
        step(token)
        spent = getattr(step, "spent", time.process_time() - started)
        times.append(spent * 1e3)
    return times


def _around(times: Sequence[float], place: int) -> float:
    return statistics.median(times[max(place - AROUND, 0) : place + AROUND])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--tokens", type=int, default=8_100)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
