"""Templates of requests: rendered like others, and stopped whatever they do."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ApiError, Transient
from tests.hostile.attacks.templates import LARGE, NESTED, SLOW
from workers.text.private_tokens import PrivateTokens
from workers.text.template_processes import RequestTemplates, TemplateProcesses
from workers.text.templates import ChatTemplate

PAD = "<|image_pad|>"
HI = [{"role": "user", "content": "hi"}]
MB = 1024 * 1024
MODELS = Path(__file__).parent.parent / "data" / "models"
WAIT_S = 30.0


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def tokens() -> PrivateTokens:
    return PrivateTokens([PAD])


@pytest.fixture(scope="module")
def templates(tokens: PrivateTokens) -> Iterator[RequestTemplates]:
    templates = RequestTemplates(TemplateProcesses(timeout_s=5, memory_bytes=64 * MB), tokens)
    yield templates
    templates.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[RequestTemplates]:
    processes = TemplateProcesses(timeout_s=0.5, memory_bytes=256 * MB)
    templates = RequestTemplates(processes, PrivateTokens([]))
    yield templates
    templates.close()


@pytest.mark.parametrize("name", SLOW)
def test_a_template_without_end_is_stopped(impatient: RequestTemplates, name: str) -> None:
    with pytest.raises(ApiError, match=r"longer than 0\.5 seconds|recursion depth|4300 digits"):
        impatient.get(SLOW[name]).render(HI, {})


@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_grows_is_stopped(templates: RequestTemplates, name: str) -> None:
    with pytest.raises(ApiError, match=r"longer than 5|more memory than 64 MB|more than 1677"):
        templates.get(LARGE[name]).render(HI, {})


@pytest.mark.parametrize("name", [n for n in NESTED if n not in ("nothing", "a lone surrogate")])
def test_a_template_that_cannot_be_read_is_refused(templates: RequestTemplates, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        templates.get(NESTED[name]).render(HI, {})

    assert caught.value.status == 400
    assert 0 < len(caught.value.message) < 3000


def test_renders_as_the_models_own_template(
    templates: RequestTemplates, tokens: PrivateTokens
) -> None:
    for path in MODELS.rglob("chat_template*"):
        text = path.read_text("utf-8")
        source = text if path.suffix == ".jinja" else json.loads(text)["chat_template"]
        picture = {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "é\ud83d"}],
        }
        for turns in ([*HI], [picture, {"role": "assistant", "content": "x", "n": 2**70}]):
            asked: dict[str, Any] = {"tools": [{"a": [1.5, None]}], "special_tokens": {"bos": PAD}}
            own = ChatTemplate(source, tokens)
            brought = templates.get(source)

            for _ in range(2):  # read first, and known then
                assert _told(brought, turns, asked) == _told(own, turns, asked)
            assert brought.content_format == own.content_format
            assert brought.knows_developer == own.knows_developer


def _told(template: Any, turns: list[dict[str, Any]], asked: dict[str, Any]) -> str:
    try:
        return str(template.render(turns, {"add_generation_prompt": True, "x": 1}, **asked))
    except ApiError as error:
        return error.message


def test_variables_and_the_end_of_the_final_message_come_through(
    templates: RequestTemplates,
) -> None:
    template = templates.get("{{ x.y[0] }}{{ documents }}{{ messages[0].content }}, so")

    told = template.render(HI, {"x": {"y": ["a"]}, "z": 1}, continue_final_message=True)

    assert told == "aNonehi"


def test_what_a_template_raises_is_told(templates: RequestTemplates) -> None:
    with pytest.raises(ApiError) as caught:
        templates.get("{{ raise_exception('no ' ~ messages[0].role) }}").render(HI, {})

    assert (caught.value.message, caught.value.param) == ("no user", None)


def test_tokens_of_a_template_are_private_and_those_of_a_caller_are_not(
    templates: RequestTemplates, tokens: PrivateTokens
) -> None:
    messages = [{"role": "user", "content": f"{PAD}{tokens.hide(PAD)}"}]

    told = templates.get(PAD + "{{ messages[0].content }}").render(messages, {})

    assert told == f"{tokens.hide(PAD)}{PAD}{tokens.hide(PAD)}"


def test_a_template_cannot_tell_how_private_tokens_are_spelled(
    templates: RequestTemplates, tokens: PrivateTokens
) -> None:
    messages = [{"role": "user", "content": tokens.hide(PAD)}]
    source = "{% for c in messages[0].content ~ '" + PAD + "' %}{{ c }},{% endfor %}"

    told = templates.get(source).render(messages, {}).replace(",", "")

    spelling = tokens.hide(PAD)
    assert len(told) == 2 * len(spelling)
    assert spelling not in told


def test_no_request_sees_what_another_one_left(templates: RequestTemplates) -> None:
    template = templates.get(
        "{{ range.x is defined }}{% set ns = namespace() %}{{ ns.x is defined }}{% set ns.x = 1 %}"
    )

    assert {template.render(HI, {}) for _ in range(3)} == {"FalseFalse"}


def test_what_is_given_is_part_of_the_memory(templates: RequestTemplates) -> None:
    messages = [{"role": "user", "content": "x" * (100 * MB)}]

    with pytest.raises(ApiError, match="more memory than 64 MB"):
        templates.get("{{ messages | length }}").render(messages, {})


def test_deep_values_are_refused(templates: RequestTemplates) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(ApiError, match="cannot be read"):
        templates.get("{{ x }}").render(HI, {"x": deep})


def test_a_process_that_is_killed_is_replaced() -> None:
    processes = TemplateProcesses(timeout_s=30, memory_bytes=64 * MB)
    templates = RequestTemplates(processes, PrivateTokens([]))
    template = templates.get("{{ messages[0].content }}")
    (worker,) = processes.pids()
    os.kill(worker, 9)

    with pytest.raises(Transient):
        template.render(HI, {})

    assert template.render(HI, {}) == "hi"
    assert processes.pids() not in ([], [worker])
    processes.close()


def test_closing_ends_what_is_being_rendered() -> None:
    processes = TemplateProcesses(timeout_s=WAIT_S, memory_bytes=64 * MB)
    templates = RequestTemplates(processes, PrivateTokens([]))
    template = templates.get(SLOW["loops in loops"])
    raised: list[BaseException] = []

    def render() -> None:
        try:
            template.render(HI, {})
        except Transient as error:
            raised.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    (worker,) = processes.pids()
    until(lambda: _children(worker) != [])
    copies = _children(worker)
    processes.close()
    thread.join(WAIT_S)

    assert len(raised) == 1
    until(lambda: not any(map(_is_alive, [worker, *copies])))
    with pytest.raises(Transient):
        template.render(HI, {})


_PARENT = """
import os, sys, threading, time
from tests.hostile.attacks.templates import SLOW
from workers.text.private_tokens import PrivateTokens
from workers.text.template_processes import RequestTemplates, TemplateProcesses
processes = TemplateProcesses(timeout_s=1, memory_bytes=2**26)
template = RequestTemplates(processes, PrivateTokens([])).get(SLOW["loops in loops"])
arguments = ([{"role": "user", "content": "x"}], {})
threading.Thread(target=template.render, args=arguments, daemon=True).start()
(worker,) = processes.pids()
while not open(f"/proc/{worker}/task/{worker}/children").read():
    time.sleep(0.01)
print(worker, open(f"/proc/{worker}/task/{worker}/children").read(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_outlives_a_server_that_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARENT], capture_output=True, text=True, timeout=60, check=False
    )

    left = [int(pid) for pid in done.stdout.split()]
    assert len(left) == 2, done.stderr
    until(lambda: not any(map(_is_alive, left)))


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_loads_neither_torch_nor_a_tokenizer() -> None:
    code = (
        "import sys, workers.text.template_worker; "
        "sys.exit(bool({'torch', 'tokenizers', 'pydantic', 'numpy'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)

    assert done.returncode == 0
