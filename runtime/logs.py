"""Structured logging on the standard library: one event name, fields, and bound context.

`logger.info("record_handled", extra={"outcome": "done"})` inside `bound(request_id=…)`. JSON lines,
or a short form on a terminal. Knows nothing of what is logged.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal, TextIO

import orjson

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_context: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default=_NOTHING)
# What every LogRecord has; whatever else one carries came in through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# uvicorn's second form of its messages, for terminals.
_UNWANTED = _STANDARD | {"color_message"}
# ECMA-48 control sequences: colours and cursor movements, as libraries for terminals write them.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
# Chatty below warning; aiokafka reports every membership change there.
_REPEAT_S = 5.0
_QUIET = ("aiokafka", "asyncio", "httpx", "httpcore", "urllib3")


def bind(**fields: Any) -> None:
    """Add fields to everything this task logs from now on, and what it starts."""
    _context.set({**_context.get(), **fields})


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields for the duration, and restore what was bound before."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def configure(
    level: str = "info",
    form: Literal["auto", "json", "console"] = "auto",
    *,
    stream: TextIO | None = None,
    always: Mapping[str, Any] = _NOTHING,
) -> None:
    """Set up the root logger of this process; a second call replaces the first.

    `always` are fields of every line.
    """
    output = stream or sys.stderr
    handler = logging.StreamHandler(output)
    is_console = form == "console" or (form == "auto" and output.isatty())
    handler.setFormatter((ConsoleFormatter if is_console else JsonFormatter)(always))
    handler.addFilter(_Repeats())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.getLogger().level, logging.WARNING))


class _Repeats(logging.Filter):
    """Lets one message of a chatty library through every few seconds: a broker that is away."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("aiokafka"):
            return True
        # The template, not the text: that has partitions and addresses in it.
        last = self._seen.get(str(record.msg))
        if last is not None and record.created - last < _REPEAT_S:
            return False
        self._seen[str(record.msg)] = record.created
        return True


class _Formatter(logging.Formatter):
    def __init__(self, always: Mapping[str, Any] = _NOTHING) -> None:
        super().__init__()
        self._always = always

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        own = {name: value for name, value in vars(record).items() if name not in _UNWANTED}
        return {**self._always, **_context.get(), **own}


class JsonFormatter(_Formatter):
    """One JSON object per line: time, level, logger, event, bound context, fields, trace."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        text = _json(line)
        return _json(_without_ansi(line)) if "\\u001b" in text else text


class ConsoleFormatter(_Formatter):
    """`12:00:01 info  record_handled outcome=done`, for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in self._fields(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if not line.isprintable():
            line = _one_line(line)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _json(line: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a lone surrogate, or a number beyond 64 bits
        return json.dumps(line, default=str, skipkeys=True)


def _without_ansi(value: Any) -> Any:
    match value:
        case str():
            return _ANSI.sub("", value)
        case Mapping():
            return {key: _without_ansi(each) for key, each in value.items()}
        case list() | tuple():
            return [_without_ansi(each) for each in value]
    return value


def _one_line(text: str) -> str:
    """What came from outside may neither begin a line of its own nor steer a terminal."""
    plain = _ANSI.sub("", text)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


def _timestamp(created: float) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{seconds}.{int(created % 1 * 1000):03d}Z"
