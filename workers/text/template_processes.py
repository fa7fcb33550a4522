"""Chat templates that came with a request, rendered in processes that can be killed.

A caller's template may loop, grow or nest without end, and nothing inside an interpreter stops that
for sure. Knows no request schema and no tokenizer.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from schemas.errors import ApiError, Transient
from workers.text.content_format import ContentFormat
from workers.text.private_tokens import PrivateTokens
from workers.text.template_worker import receive, send

MAX_SOURCE_CHARS = 1024 * 1024
"""Of a template; those of models have up to fifty thousand."""
_WORKER = "workers.text.template_worker"
_KNOWN_TEMPLATES = 64
_MAX_COMPILED_CHARS = 512 * 1024
# For the process to start, and to be heard on a busy machine, beyond what a template may take.
_GRACE_S = 20.0
_ENVIRONMENT = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ",
)  # fmt: skip
"""All that a template could see if it ever got out of its sandbox: no keys."""


class TemplateProcesses:
    """Renders with as many processes as there are callers at once. Safe to share between threads.

    Processes start when they are needed and stay.
    """

    def __init__(self, *, timeout_s: float, memory_bytes: int) -> None:
        """What the rendering of one prompt may take."""
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._all: set[_Process] = set()
        self._lock = Lock()
        self._is_closed = False

    def ask(self, request: bytes) -> dict[str, Any]:
        """The answer to `template_worker`'s form of a request.

        Raise ApiError where the template is at fault, Transient where a process is.
        """
        process = self._take()
        try:
            answer = process.ask(request, self._timeout_s + _GRACE_S)
        except BaseException:
            self._end(process)
            raise
        self._idle.put(process)
        if "error" in answer:
            raise ApiError(answer["error"], param=answer["param"])
        return answer

    def pids(self) -> list[int]:
        """Of the processes that there are now."""
        with self._lock:
            return [process.pid for process in self._all]

    def close(self) -> None:
        """End all of them, busy or not; whoever waits for an answer gets Transient."""
        with self._lock:
            self._is_closed = True
            left, self._all = self._all, set()
        for process in left:
            process.kill()

    def _take(self) -> "_Process":
        with suppress(Empty):
            return self._idle.get_nowait()
        with self._lock:
            if self._is_closed:
                raise Transient("the template processes are closed")
            process = _Process(self._timeout_s, self._memory_bytes)
            self._all.add(process)
        return process

    def _end(self, process: "_Process") -> None:
        with self._lock:
            if process not in self._all:
                return
            self._all.remove(process)
        process.kill()


class _Process:
    """One `template_worker`."""

    def __init__(self, timeout_s: float, memory_bytes: int) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    _WORKER,
                    *map(str, (theirs.fileno(), timeout_s, memory_bytes)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: bytes, timeout_s: float) -> dict[str, Any]:
        """Raise Transient where it ended or keeps silent: that is no template's doing."""
        deadline = time.monotonic() + timeout_s
        try:
            self._connection.settimeout(timeout_s)
            send(self._connection, request)
            answer = receive(self._connection, deadline)
        except OSError as error:
            raise Transient(f"a template process failed: {error}") from None
        if answer is None:
            raise Transient("a template process ended")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def kill(self) -> None:
        """With the copy of it that may be rendering."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Known:
    """What a worker has found out about a template."""

    content_format: ContentFormat
    knows_developer: bool
    compiled: str
    """JSON that only workers look into."""
    tokens: PrivateTokens
    """Spelled as in `compiled`, and nowhere else: a template can tell anybody how."""


class RequestTemplate:
    """A template that came with a request; a `ChatTemplate` that is rendered elsewhere."""

    def __init__(self, source: str, known: _Known, templates: "RequestTemplates") -> None:
        self._source = source
        self._known = known
        self._templates = templates
        self.content_format = known.content_format
        self.knows_developer = known.knows_developer

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any],
        *,
        tools: list[dict[str, Any]] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """As `ChatTemplate.render`; ApiError also where time or memory do not suffice."""
        arguments = {
            "messages": messages,
            "variables": variables,
            "tools": tools,
            "special_tokens": special_tokens,
            "continue_final_message": continue_final_message,
        }
        return self._templates.render(self._source, self._known, arguments)


class RequestTemplates:
    """Templates of requests by their source. Safe to share between threads."""

    def __init__(self, processes: TemplateProcesses, tokens: PrivateTokens) -> None:
        self._processes = processes
        self._tokens = tokens
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._lock = Lock()

    def get(self, source: str) -> RequestTemplate:
        """Raise ApiError for what is no template, or one that cannot be read within the limits."""
        if len(source) > MAX_SOURCE_CHARS:
            raise ApiError(
                f"A chat template may have at most {MAX_SOURCE_CHARS} characters.",
                param="chat_template",
            )
        key = hashlib.sha256(source.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is None:
            known = self._read(source)
            with self._lock:
                self._known[key] = known
                if len(self._known) > _KNOWN_TEMPLATES:
                    self._known.popitem(last=False)
        return RequestTemplate(source, known, self)

    def _read(self, source: str) -> _Known:
        tokens = self._tokens.respelled()
        found = self._processes.ask(_request(source, tokens))
        compiled = json.dumps(found.pop("compiled"))
        if len(compiled) > _MAX_COMPILED_CHARS:
            compiled = "null"
        return _Known(**found, compiled=compiled, tokens=tokens)

    def render(self, source: str, known: _Known, arguments: Mapping[str, Any]) -> str:
        given = self._tokens.moved(_json(arguments), known.tokens)
        request = _request(source, known.tokens, compiled=known.compiled, render=given)
        text: str = self._processes.ask(request)["text"]
        return known.tokens.moved(text, self._tokens)

    def close(self) -> None:
        self._processes.close()


def _request(
    source: str, tokens: PrivateTokens, *, compiled: str = "null", render: str = "null"
) -> bytes:
    head = _json({"source": source, "spelling": dict(tokens.spelling)})
    text = f'{head[:-1]}, "compiled": {compiled}, "render": {render}}}'
    return text.encode("utf-8", "surrogatepass")


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise ApiError(f"What the chat template is given cannot be read: {error}") from None
