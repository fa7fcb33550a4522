"""Texts and tokens whose cost could grow with the square of their number."""

from typing import Any

from tests.hostile.attack import Attack, post

_CHAT = "/v1/chat/completions"
_RENDER = "/v1/chat/completions/render"
_FINE = frozenset({200})
_REFUSED = frozenset({400})
_HELD = frozenset({200, 400})
"""Limits on the number of values may refuse it first."""
_HALF_A_CHARACTER = 95
"""A token of one byte that begins no character."""


def _user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}


def _derender(count: int) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": [_HALF_A_CHARACTER] * count, "finish_reason": "stop"}
    return {"generate_response": {"request_id": "r", "choices": [choice]}}


def _calls(count: int) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return {"input": [call] * count, "truncation": "auto"}


_TRUNCATED = {"truncate_prompt_tokens": 20}

ATTACKS = [
    Attack("a text of 20 MB", post(_RENDER, lambda: _user("word " * 4_000_000)), _REFUSED),
    Attack(
        "a text of 20 MB to be truncated",
        post(_RENDER, lambda: _user("word " * 4_000_000, **_TRUNCATED)),
        _REFUSED,
    ),
    Attack(
        "a text of 20 MB to be truncated on the left",
        post(_RENDER, lambda: _user("word " * 4_000_000, truncation_side="left", **_TRUNCATED)),
        _FINE,
    ),
    Attack(
        "a text of 8 MB", post(_RENDER, lambda: _user("word " * 1_600_000, **_TRUNCATED)), _FINE
    ),
    Attack("8 MB of lines", post(_RENDER, lambda: _user("a 1\n" * 2_000_000, **_TRUNCATED)), _FINE),
    *(
        Attack(
            f"{len(run) // 10**6} MB of {name}",
            post(_RENDER, lambda run=run: _user(run, **_TRUNCATED)),
            expect,
        )
        for name, run, expect in (
            ("blanks", " " * 20_000_000, _REFUSED),
            ("fewer blanks", " " * 8_000_000, _REFUSED),
            ("empty lines", "\n" * 8_000_000, _REFUSED),
            ("one letter", "a" * 5_000_000, _REFUSED),
            ("digits", "1" * 8_000_000, _REFUSED),
            ("emojis", "\U0001f600" * 2_000_000, _REFUSED),
            ("one letter that is not too long", "a" * 1_000_000, _FINE),
        )
    ),
    Attack(
        "12 MB of blanks on the left",
        post(
            _RENDER,
            lambda: _user("x" + " " * 12_000_000, truncation_side="left", **_TRUNCATED),
        ),
        _FINE,
    ),
    Attack(
        "2 MB of digits with offsets",
        post(_RENDER, lambda: _user("1" * 2_000_000, return_token_offsets=True, **_TRUNCATED)),
        _REFUSED,
    ),
    Attack(
        "1 MB of words with offsets",
        post(_RENDER, lambda: _user("word " * 200_000, return_token_offsets=True, **_TRUNCATED)),
        _FINE,
    ),
    Attack(
        "100 000 ends of a turn",
        post(_RENDER, lambda: _user("<|im_end|>" * 100_000, **_TRUNCATED)),
        _FINE,
    ),
    Attack(
        "8 MB to /tokenize",
        post("/tokenize", lambda: {"prompt": "word " * 1_600_000, "return_token_strs": True}),
        _FINE,
    ),
    Attack(
        "a million tokens to /detokenize",
        post("/detokenize", lambda: {"tokens": [_HALF_A_CHARACTER] * 1_000_000}),
        _HELD,
    ),
    Attack(
        "100 000 tokens that are no text to derender",
        post("/v1/chat/completions/derender", lambda: _derender(100_000)),
        _HELD,
    ),
    Attack(
        "a type of a part that looks like a path",
        post(
            _CHAT,
            lambda: {"messages": [{"role": "x", "content": [{"type": "/a" * 1_000_000}]}]},
        ),
        _REFUSED,
    ),
    Attack("20 000 calls in one turn", post("/v1/responses/render", lambda: _calls(20_000)), _HELD),
    Attack(
        "100 000 prompts",
        post("/v1/completions/render", lambda: {"prompt": ["a"] * 100_000}),
        _REFUSED,
    ),
    Attack(
        "1 000 prompts of 10 kB",
        post("/v1/completions/render", lambda: {"prompt": ["word " * 2000] * 1000, **_TRUNCATED}),
        _HELD,
    ),
]
