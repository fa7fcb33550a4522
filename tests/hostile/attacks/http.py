"""Attacks on the HTTP server and on the reading of bodies: sizes, counts and malformed requests."""

from tests.hostile.attack import Attack, post

CHAT = "/v1/chat/completions"
_REFUSED = frozenset({400})


def _chat(**options: object) -> dict:
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, **options}


def _text_parts(count: int) -> dict:
    part = {"type": "text", "text": "a"}
    return {"messages": [{"role": "user", "content": [part] * count}], "max_tokens": 2}


ATTACKS = [
    Attack("200 000 text parts in a message", post(CHAT, lambda: _text_parts(200_000)), _REFUSED),
    Attack(
        "100 000 bad words",
        post(CHAT, lambda: _chat(bad_words=[f"w{i}" for i in range(100_000)])),
        _REFUSED,
    ),
]
