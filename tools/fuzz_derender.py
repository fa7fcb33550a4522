"""Compares what output parsers make of generated outputs with the real vLLM, whole and streamed.

    python tools/fuzz_derender.py --peer /path/to/vllm [--count 200] [--pair hermes+qwen3 ...]

`--peer` is the command of a render server (`COMMAND launch render MODEL …`). Outputs are drawn from
the strategies of tests/derender: as the parser's model writes them, cut off, and rubbish. Streams
are dealt in chunks of one to four tokens. Prints every difference and their number by kind.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.model_dir import read_model
from runtime.settings import ModelSettings
from schemas.errors import ApiError
from schemas.routes import Kind
from schemas.validation import parse_body
from tests.derender.builders import limits_for
from tests.derender.marked import write_marked_model
from tests.derender.outputs import TOOLS, WRITERS, dumpers, prose, rubbish
from workers.derender.answers import answer_bytes
from workers.derender.chunks import derender_chat_chunk
from workers.derender.model import TextModel, open_text_model
from workers.derender.parsed_chunks import KeptStreams
from workers.derender.whole import derender_chat

URL = "/v1/chat/completions/derender"
NAME = "marked"
PROMPT = [1, 2, 3]
PAIRS = (
    "hermes+qwen3", "hermes", "llama3_json", "mistral", "qwen3_coder+qwen3", "qwen3_coder",
    "pythonic", "glm45+glm45", "deepseek_v3+deepseek_r1", "deepseek_v31", "granite",
)  # fmt: skip
START_S = 300


def main() -> int:
    args = _arguments()
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        path = write_marked_model(Path(folder) / NAME)
        for pair in args.pair or PAIRS:
            differences += _compare(pair, path, args)
    return 1 if differences else 0


def _compare(pair: str, path: Path, args: argparse.Namespace) -> int:
    tools, _, reasoning = pair.partition("+")
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", tools]
    flags += ["--reasoning-parser", reasoning] if reasoning else []
    model = _model(path, tools, reasoning or None)
    counts: Counter[str] = Counter()
    with _Peer(args.peer, path, flags) as peer:
        for kind, text in _outputs(tools, reasoning, args.count):
            for mode in (_whole, _streamed):
                ours = mode(text, model, lambda body: _ours(body, model))
                theirs = mode(text, model, peer.post)
                counts[f"{kind} {mode.__name__[1:]}"] += 1
                if ours != theirs:
                    counts[f"{kind} {mode.__name__[1:]} DIFFERENT"] += 1
                    print(f"{pair} {kind} {mode.__name__[1:]}: {text!r}")
                    print(f"    ours   {ours}\n    theirs {theirs}", flush=True)
    print(f"== {pair}: {dict(sorted(counts.items()))}", flush=True)
    return sum(number for name, number in counts.items() if name.endswith("DIFFERENT"))


def _outputs(tools: str, reasoning: str, count: int) -> Iterator[tuple[str, str]]:
    write, calls = WRITERS[tools]
    drawn: list[tuple[str, str]] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(prose, prose, calls, dumpers, rubbish, st.integers(1, 200))
    def draw(thought: str, content: str, made: Any, dump: Any, broken: str, cut: int) -> None:
        before = f"<think>{thought}</think>" if reasoning else ""
        text = before + write(content, made, dump)
        drawn.append(("well-formed", text))
        drawn.append(("cut off", text[:cut]))
        drawn.append(("rubbish", broken))

    draw()
    yield from dict.fromkeys(drawn[: 3 * count])


def _whole(text: str, model: TextModel, post: Any) -> Any:
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        return None
    body = _body() | {"generate_response": _response(ids)}
    answer = post(body)
    if "choices" not in answer:
        return answer
    message = answer["choices"][0]["message"]
    calls = [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]
    finish = answer["choices"][0]["finish_reason"]
    return message["reasoning"], message["content"], calls, finish


def _response(ids: list[int]) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop"}
    return {"request_id": "r", "prompt_token_ids": PROMPT, "choices": [choice]}


def _body() -> dict[str, Any]:
    chat = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
    return {"model": NAME, "prompt_token_ids": PROMPT, "chat_request": chat}


def _streamed(text: str, model: TextModel, post: Any) -> Any:
    """What all deltas add up to."""
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    sizes = random.Random(text)
    parts: dict[str, str] = {"content": "", "reasoning": ""}
    calls: dict[int, list[str]] = {}
    state, finish = None, None
    while ids or finish is None:
        size = sizes.randint(1, 4)
        chunk, ids = ids[:size], ids[size:]
        reason = None if ids else "stop"
        choice = {"index": 0, "token_ids": chunk, "finish_reason": reason}
        body = _body() | {
            "stream": True,
            "generate_chunk": {"request_id": "r", "choices": [choice]},
        }
        if state is not None:
            body["stream_state"] = state
        answer = post(body)
        if "chunk" not in answer:
            return answer
        state, given = answer["stream_state"], answer["chunk"]["choices"][0]
        finish = given["finish_reason"]
        for channel in parts:
            parts[channel] += given["delta"][channel] or ""
        for call in given["delta"].get("tool_calls", ()):
            made = calls.setdefault(call["index"], ["", ""])
            made[0] += call["function"]["name"] or ""
            made[1] += call["function"]["arguments"] or ""
    return parts["reasoning"], parts["content"], [calls[i] for i in sorted(calls)], finish


def _model(path: Path, tools: str, reasoning: str | None) -> TextModel:
    own = ModelSettings(
        model=str(path),
        served_model_name=(NAME,),
        tool_call_parser=tools,
        reasoning_parser=reasoning,
        enable_auto_tool_choice=True,
    )
    return open_text_model(own, read_model(own), limits_for(own), "assistant")


_KEPT = KeptStreams()


def _ours(body: dict[str, Any], model: TextModel) -> Any:
    raw = json.dumps(body).encode()
    try:
        request: Any = parse_body(Kind.CHAT_DERENDER, raw, model.limits)
        if body.get("stream"):
            return json.loads(answer_bytes(derender_chat_chunk(request, model, _KEPT)))
        return json.loads(answer_bytes(derender_chat(request, model)))
    except ApiError as error:
        return {"status": error.status}


class _Peer:
    """A render server of the real vLLM."""

    def __init__(self, command: str, path: Path, flags: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        line = [command, "launch", "render", str(path), "--served-model-name", NAME]
        line += ["--host", "127.0.0.1", "--port", str(self._port), *flags]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(line, stdout=self._log, stderr=subprocess.STDOUT)

    def __enter__(self) -> "_Peer":
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2)
                return self
            except OSError:
                time.sleep(0.5)
        self._log.seek(0)
        sys.stderr.write(self._log.read().decode(errors="replace")[-3000:])
        self._process.kill()
        raise SystemExit("the peer did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def post(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{URL}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            return {"status": error.code}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="command of vLLM")
    parser.add_argument("--count", type=int, default=200, help="outputs of each kind and parser")
    parser.add_argument("--pair", action="append", help="tool parser, or tool+reasoning parser")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
