"""Attacks on the HTTP server and on the reading of bodies: sizes, counts and malformed requests."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from tests.hostile.attack import (
    CLOSED,
    NAME,
    Answer,
    Attack,
    Body,
    Send,
    Target,
    post,
    raw,
    together,
)

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
RENDER = "/v1/chat/completions/render"
GENERATE = "/inference/v1/generate"
_MIB = 1024 * 1024
_HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
_OK, _REFUSED = frozenset({200}), frozenset({400})
_LARGE_HEAD, _LATE, _TOO_LARGE = frozenset({431}), frozenset({408}), frozenset({413})
_QUICK = ("--receive-timeout-s", "3")
"""So that what is slow is late soon."""


def _chat(**options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, **options}


def _messages(messages: list[Any]) -> dict[str, Any]:
    return {"messages": messages, "max_tokens": 2}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _numbered(count: int, stem: str = "w") -> list[str]:
    return [f"{stem}{i}" for i in range(count)]


def _generate(**params: Any) -> dict[str, Any]:
    return {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2, **params}}


def _nested(depth: int) -> bytes:
    return b'{"messages":' + b"[" * depth + b"]" * depth + b"}"


def _body(
    path: str, name: str, make: Callable[[], Body], expect: frozenset[int] = _REFUSED
) -> Attack:
    return Attack(name, post(path, make), expect)


# Bodies of many small parts


def _values(count: int) -> bytes:
    return b'{"messages":[],"x":[' + b"0," * count + b"0]}"


def _keys(count: int) -> bytes:
    return json.dumps({f"key-{i:012}": 0 for i in range(count)} | _chat()).encode()


def _escapes() -> bytes:
    """A string that only spells JSON, and another whose quotes are all escaped."""
    return json.dumps(_chat(user="x" * 100, note=["{[,]}" * 2_000_000, '"' * 5_000_000])).encode()


BODIES = [
    _body(CHAT, "200 000 text parts in a message", lambda: _messages([_user([{"type": "text", "text": "a"}] * 200_000)])),
    _body(CHAT, "200 000 text parts over 2 000 messages", lambda: _messages([_user([{"type": "text", "text": "a"}] * 100)] * 2_000)),
    _body(CHAT, "8 000 text parts", lambda: _messages([_user([{"type": "text", "text": "a"}] * 8_000)]), _OK | _REFUSED),
    _body(RENDER, "8 000 parts of no known type", lambda: _messages([_user([{"a": {"b": 1}}] * 8_000)])),
    _body(CHAT, "400 000 messages", lambda: _messages([_user("a")] * 400_000)),
    _body(CHAT, "8 000 messages", lambda: _messages([_user("a")] * 8_000), _OK | _REFUSED),
    _body(CHAT, "100 000 tool calls", lambda: _messages([{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * 100_000}])),
    _body(CHAT, "100 000 tools", lambda: _chat(tools=[{"type": "function", "function": {"name": "f"}}] * 100_000)),
    _body(CHAT, "a tool of 300 000 parameters", lambda: _chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {name: {} for name in _numbered(300_000)}}}}])),
    _body(CHAT, "100 000 bad words", lambda: _chat(bad_words=_numbered(100_000))),
    _body(CHAT, "4 000 bad words", lambda: _chat(bad_words=_numbered(4_000)), _OK | _REFUSED),
    _body(CHAT, "a million allowed token ids", lambda: _chat(allowed_token_ids=[1] * 999_000)),
    _body(CHAT, "250 000 allowed token ids outside of the vocabulary", lambda: _chat(allowed_token_ids=list(range(250_000)))),
    _body(CHAT, "300 000 logit biases", lambda: _chat(logit_bias={str(i): 1 for i in range(300_000)})),
    _body(CHAT, "16 000 logit biases that are none", lambda: _chat(logit_bias={f"/a{i}": "/b/c.d" for i in range(16_000)})),
    _body(CHAT, "300 000 stop strings", lambda: _chat(stop=_numbered(300_000))),
    _body(CHAT, "300 000 stop token ids", lambda: _chat(stop_token_ids=[1] * 300_000)),
    _body(CHAT, "900 000 stop token ids that are none", lambda: _chat(stop_token_ids=["x"] * 900_000)),
    _body(CHAT, "a choice of 100 000 strings", lambda: _chat(structured_outputs={"choice": _numbered(100_000)})),
    _body(CHAT, "a choice of one string of 1 MB", lambda: _chat(structured_outputs={"choice": ["a" * _MIB]})),
    _body(GENERATE, "a choice of one string of 1 MB to generate", lambda: _generate(structured_outputs={"choice": ["a" * _MIB]})),
    _body(CHAT, "a JSON schema of 300 000 properties", lambda: _chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {name: {} for name in _numbered(300_000)}}}})),
    _body(CHAT, "a JSON schema with an enum of 5 MB", lambda: _chat(structured_outputs={"json": {"enum": ["a" * (5 * _MIB)]}})),
    _body(CHAT, "a regular expression of 1 MB", lambda: _chat(structured_outputs={"regex": "(a|b)" * 200_000})),
    _body(CHAT, "20 MB of distinct keys", lambda: _keys(900_000)),
    _body(CHAT, "ten million values", lambda: _values(10_000_000)),
    _body(CHAT, "900 000 values beside the chat", lambda: _values(900_000)),
    _body(CHAT, "strings that spell JSON", _escapes, _OK | _REFUSED),
    _body(CHAT, "a million levels of nesting", lambda: _nested(1_000_000)),
    _body(CHAT, "60 000 levels of nesting", lambda: _nested(60_000)),
    _body(COMPLETION, "100 000 prompts", lambda: {"prompt": ["a"] * 100_000, "max_tokens": 1}),
    _body(COMPLETION, "900 000 token ids", lambda: {"prompt": [1] * 900_000, "max_tokens": 1}),
    _body(COMPLETION, "900 000 negative token ids", lambda: {"prompt": [-1] * 900_000, "max_tokens": 1}),
    _body(COMPLETION, "450 000 prompts of one token", lambda: {"prompt": [[1]] * 450_000, "max_tokens": 1}),
    _body(CHAT, "ec_transfer_params of 250 000 keys", lambda: _chat(ec_transfer_params=dict.fromkeys(_numbered(250_000, "k" * 20), 1))),
    _body(CHAT, "kv_transfer_params of 5 MB in one string", lambda: _chat(kv_transfer_params={"a": "b" * (5 * _MIB)})),
    _body(CHAT, "chat_template_kwargs of 500 000 values", lambda: _chat(chat_template_kwargs={"a": [1] * 500_000})),
    _body(CHAT, "300 000 documents", lambda: _chat(documents=[{"title": "a"}] * 300_000)),
    _body(CHAT, "a model name of 10 MB", lambda: _chat(model="/a" * (5 * _MIB))),
    _body(CHAT, "a request id of 1 MB in the body", lambda: _chat(request_id="a" * _MIB)),
    _body("/tokenize", "400 000 messages to tokenize", lambda: _messages([_user("a")] * 400_000)),
    _body("/detokenize", "950 000 tokens that are none", lambda: {"tokens": ["a"] * 950_000}),
    _body("/v1/responses/render", "300 000 input items", lambda: {"input": [{"role": "user", "content": "a"}] * 300_000}),
    _body("/v1/messages/render", "200 000 content blocks", lambda: {"model": NAME, "max_tokens": 1, "messages": [_user([{"type": "text", "text": "a"}] * 200_000)]}),
    _body("/v1/chat/completions/derender", "900 000 tokens that are none to derender", lambda: {"generate_response": {"choices": [{"index": 0, "token_ids": ["x"] * 900_000}]}, "prompt_token_ids": [-1] * 90_000}),
    _body(GENERATE, "900 000 rows of prompt_logprob_token_ids", lambda: _generate(prompt_logprob_token_ids=[["a"]] * 400_000)),
    _body(CHAT, "lone surrogate in stop", lambda: b'{"messages":[{"role":"user","content":"a"}],"stop":["\\ud83d"]}'),
    _body(CHAT, "lone surrogate in a key", lambda: b'{"messages":[{"role":"user","content":"a"}],"metadata":{"\\ud83d":"a"}}'),
    _body(CHAT, "lone surrogate in the model", lambda: b'{"model":"\\ud800","messages":[{"role":"user","content":"a"}]}'),
    _body(CHAT, "a number of a million digits", lambda: b'{"messages":[],"seed":' + b"9" * _MIB + b"}"),
    _body(CHAT, "60 000 numbers of 4 000 digits", lambda: b'{"messages":[],"x":[' + (b"9" * 4_000 + b",") * 60_000 + b"0]}"),
]  # fmt: skip


# Heads


def _get(head: bytes) -> bytes:
    return b"GET /health HTTP/1.1\r\nhost: x\r\n" + head


def _one_header(size: int) -> Iterator[bytes]:
    yield _get(b"x-big: ")
    for _ in range(size // _MIB):
        yield b"a" * _MIB
    yield b"\r\n\r\n"


def _many_headers(size: int) -> Iterator[bytes]:
    yield _get(b"")
    block = b"".join(b"x-%06d: %s\r\n" % (i, b"a" * 50) for i in range(1_000))
    for _ in range(size // len(block)):
        yield block
    yield b"\r\n"


def _long_url(size: int) -> Iterator[bytes]:
    yield b"GET /"
    for _ in range(size // _MIB):
        yield b"a" * _MIB
    yield b" HTTP/1.1\r\nhost: x\r\n\r\n"


def _trailers(size: int) -> Iterator[bytes]:
    yield _HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    for i in range(size // 1_000):
        yield b"x-%d: %s\r\n" % (i, b"a" * 1_000)


def _chunk_extension(size: int) -> Iterator[bytes]:
    yield _HEAD + b"transfer-encoding: chunked\r\n\r\n2;a="
    for _ in range(size // _MIB):
        yield b"a" * _MIB


def _chunk_extensions(count: int) -> Iterator[bytes]:
    yield _HEAD + b"transfer-encoding: chunked\r\n\r\n"
    for _ in range(count):
        yield b"1;" + b"a" * 8_000 + b"\r\n \r\n"


def _pipelined(count: int) -> Iterator[bytes]:
    for _ in range(count // 1_000):
        yield b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 1_000


def _blank_lines() -> Iterator[bytes]:
    while True:
        yield b"\r\n" * 10_000


async def _slowly(head: bytes) -> AsyncIterator[bytes]:
    """Begins a head and goes on one byte at a time."""
    yield head
    while True:
        await asyncio.sleep(0.2)
        yield b"a"


def _said(*pieces: bytes) -> Send:
    return raw(lambda: pieces)


_EXTRA = {
    "two content lengths": b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "content length and chunks": b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two transfer encodings": b"transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n",
    "a content length that is negative": b"content-length: -2\r\n\r\n{}",
    "a content length with a sign": b"content-length: +2\r\n\r\n{}",
    "a content length of 30 digits": b"content-length: " + b"9" * 30 + b"\r\n\r\n{}",
    "a folded header": b"x-a: 1\r\n 2\r\ncontent-length: 2\r\n\r\n{}",
    "a blank before the colon": b"content-length : 2\r\n\r\n{}",
    "a null byte in a header": b"x-a: \0\r\ncontent-length: 2\r\n\r\n{}",
    "a chunk size that is none": b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
    "a chunk size beyond 64 bits": b"transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a chunk longer than its size": b"transfer-encoding: chunked\r\n\r\n1\r\n{}}\r\n",
}

HEADS = [
    Attack("one header of 200 MB", raw(lambda: _one_header(200 * _MIB)), _LARGE_HEAD),
    Attack("headers of 300 MB", raw(lambda: _many_headers(300 * _MIB)), _LARGE_HEAD),
    Attack("a URL of 200 MB", raw(lambda: _long_url(200 * _MIB)), frozenset({414, 431})),
    Attack("trailers of 100 MB", raw(lambda: _trailers(100 * _MIB)), _LARGE_HEAD),
    Attack("a chunk extension of 200 MB", raw(lambda: _chunk_extension(200 * _MIB)), _LARGE_HEAD),
    Attack("chunk extensions of 80 MB", raw(lambda: _chunk_extensions(10_000)), _REFUSED),
    Attack("100 000 pipelined requests", raw(lambda: _pipelined(100_000)), frozenset({0, 200, 400})),
    Attack("blank lines without end", raw(_blank_lines), _LARGE_HEAD),
    Attack("X-Request-Id of 1 MB", post(CHAT, _chat(), {"x-request-id": "a" * _MIB}), _LARGE_HEAD),
    Attack("X-Request-Id of 60 000 bytes", post(CHAT, _chat(), {"x-request-id": "a" * 60_000}), _REFUSED),
    Attack("a head that never ends", raw(lambda: _slowly(_get(b"x-a: "))), _LATE, _QUICK),
    Attack("a connection without a request", _said(), frozenset(), _QUICK),
    Attack("300 heads that never end", together(*[raw(lambda: _slowly(_get(b"x-a: ")))] * 300), _LATE, _QUICK),
    Attack("TLS to a server without", _said(bytes.fromhex("160301020001000100fc0303") + b"\0" * 64), _REFUSED),
    Attack("HTTP/2 to a server without", _said(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), _REFUSED),
    Attack("a WebSocket", _said(_get(b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: a\r\nsec-websocket-version: 13\r\n\r\n")), _OK),
    *(Attack(name, _said(_HEAD + extra), _REFUSED) for name, extra in _EXTRA.items()),
]  # fmt: skip


# Bodies that do not arrive


def _unfinished(size: int) -> Iterator[bytes]:
    yield _HEAD + b"content-length: %d\r\n\r\n" % (size + 1)
    yield b'{"messages":[{"role":"user","content":"'
    for _ in range(size // _MIB):
        yield b"a" * _MIB


async def _dripping() -> AsyncIterator[bytes]:
    yield _HEAD + b"content-length: 1000\r\n\r\n"
    while True:
        await asyncio.sleep(0.2)
        yield b" "


def _announced(size: int) -> Iterator[bytes]:
    yield _HEAD + b"content-length: %d\r\n\r\n{" % size


def _chunks(size: int) -> Iterator[bytes]:
    yield _HEAD + b"transfer-encoding: chunked\r\n\r\n"
    for _ in range(size // _MIB):
        yield b"100000\r\n" + b" " * _MIB + b"\r\n"


async def _leave(target: Target) -> Answer:
    """Send half of a body and go."""
    _, writer = await asyncio.open_connection(target.host, target.port)
    writer.write(_HEAD + b"content-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    return CLOSED


ARRIVALS = [
    Attack("8 bodies of 200 MB that are never finished", together(*[raw(lambda: _unfinished(200 * _MIB))] * 8), frozenset({503}), _QUICK),
    Attack("a body that drips", raw(_dripping), _LATE, _QUICK),
    Attack("200 bodies that drip", together(*[raw(_dripping)] * 200), _LATE, _QUICK),
    Attack("a body of 100 GB as announced", raw(lambda: _announced(100 * 1024 * _MIB)), _TOO_LARGE),
    Attack("a body of 300 MB in chunks", raw(lambda: _chunks(300 * _MIB)), _TOO_LARGE),
    Attack("a client that leaves in the middle of a body", _leave, frozenset()),
    Attack("a compressed body", post(CHAT, lambda: gzip.compress(b" " * 100 * _MIB), {"content-encoding": "gzip"}), frozenset({415})),
]  # fmt: skip

ATTACKS = [*BODIES, *HEADS, *ARRIVALS]
