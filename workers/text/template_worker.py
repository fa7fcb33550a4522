"""Renders chat templates that came with requests: `python -m workers.text.template_worker …`.

Started by `workers.text.template_processes` only, with its end of a socket, seconds and bytes. It
forks for every request: what a template may use is limited by the system, what it leaves behind
goes with it, and only the copy has to be killed. Loads jinja2 and no more.
"""

import json
import marshal
import os
import resource
import signal
import socket
import sys
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any, NoReturn

from schemas.errors import ApiError
from workers.text.private_tokens import PrivateTokens
from workers.text.templates import ChatTemplate, CompiledTemplate

_HEAD = 8
_PIECE = 1024 * 1024
_NICE = 10
_MAX_FILES = 16
MAX_TEXT_CHARS = 16 * 1024 * 1024
"""Of what a template makes: four times a prompt of a million tokens."""


def send(connection: socket.socket, message: bytes) -> None:
    """One message. Raise OSError where the other end is gone or, with a time-out, too slow."""
    connection.sendall(len(message).to_bytes(_HEAD) + message)


def receive(connection: socket.socket, deadline: float | None = None) -> bytes | None:
    """The next message; None where the other end is gone.

    Raise TimeoutError when it is not there by the deadline (of the monotonic clock).
    """
    head = _read(connection, _HEAD, deadline)
    return None if head is None else _read(connection, int.from_bytes(head), deadline)


def _read(connection: socket.socket, count: int, deadline: float | None) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = connection.recv(min(count - len(data), _PIECE))
        if not piece:
            return None
        data += piece
    return bytes(data)


class Limits:
    """What the rendering of one request may take."""

    def __init__(self, timeout_s: float, memory_bytes: int) -> None:
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes

    def apply(self) -> None:
        """To this process, whose memory so far does not count."""
        seconds = int(time.process_time() + self.timeout_s) + 1
        _limit(resource.RLIMIT_CPU, seconds)  # where nobody is left to kill it
        _limit(resource.RLIMIT_AS, _address_space() + self.memory_bytes)
        _limit(resource.RLIMIT_FSIZE, 0)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_NOFILE, _MAX_FILES)

    @property
    def too_slow(self) -> str:
        return f"The chat template took longer than {self.timeout_s:g} seconds to render."

    @property
    def too_much(self) -> str:
        return (
            f"The chat template needs more memory than {self.memory_bytes // 1024**2} MB, or is"
            " nested too deeply."
        )


def _limit(what: int, most: int) -> None:
    with suppress(ValueError, OSError):  # not every system knows every limit
        resource.setrlimit(what, (most, most))


def _address_space() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def serve(connection: socket.socket, limits: Limits) -> None:
    """Answer one request after another until the other end is gone."""
    while (request := receive(connection)) is not None:
        send(connection, _answer_apart(request, connection, limits))


def _answer_apart(request: bytes, connection: socket.socket, limits: Limits) -> bytes:
    ours, theirs = socket.socketpair()
    deadline = time.monotonic() + limits.timeout_s
    copy = os.fork()
    if copy == 0:
        ours.close()
        connection.close()
        _answer_and_exit(request, theirs, limits)
    theirs.close()
    is_late, answer = False, None
    with ours:
        try:
            answer = receive(ours, deadline)
        except TimeoutError:
            is_late = True
    os.kill(copy, signal.SIGKILL)
    _, status = os.waitpid(copy, 0)
    if answer is not None:
        return answer
    is_late = is_late or os.WTERMSIG(status) == signal.SIGXCPU
    return _refusal(limits.too_slow if is_late else limits.too_much)


def _answer_and_exit(request: bytes, connection: socket.socket, limits: Limits) -> NoReturn:
    too_much = _refusal(limits.too_much)
    try:
        limits.apply()
        try:
            answer = _encoded(_answer(json.loads(request)))
        except MemoryError:
            answer = too_much
        send(connection, answer)
    finally:
        os._exit(0)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    tokens = PrivateTokens.spelled(request["spelling"])
    try:
        template = ChatTemplate(request["source"], tokens, _restored(request["compiled"]))
        if request["render"] is None:
            return _facts(template)
        text = template.render(**request["render"])
    except ApiError as error:
        return {"error": error.message, "param": error.param}
    if len(text) > MAX_TEXT_CHARS:
        return _beyond(f"The chat template made more than {MAX_TEXT_CHARS} characters.")
    return {"text": text}


def _facts(template: ChatTemplate) -> dict[str, Any]:
    compiled = template.compiled
    return {
        "knows_developer": template.knows_developer,
        "content_format": compiled.content_format,
        "compiled": {
            "code": b64encode(marshal.dumps(compiled.code)).decode(),
            "content_format": compiled.content_format,
            "variables": sorted(compiled.variables),
        },
    }


def _restored(compiled: dict[str, Any] | None) -> CompiledTemplate | None:
    """What a copy of this process made; nobody else ever reads its code."""
    if compiled is None:
        return None
    code = marshal.loads(b64decode(compiled["code"]))
    return CompiledTemplate(code, compiled["content_format"], frozenset(compiled["variables"]))


def _beyond(message: str) -> dict[str, Any]:
    return {"error": message, "param": "chat_template"}


def _refusal(message: str) -> bytes:
    return _encoded(_beyond(message))


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    fd, timeout_s, memory_bytes = sys.argv[1:]
    os.nice(_NICE)
    connection = socket.socket(fileno=int(fd))
    with suppress(ConnectionError):
        serve(connection, Limits(float(timeout_s), int(memory_bytes)))


if __name__ == "__main__":
    main()
