"""The kinds of request and the way each takes through the fleet, as data."""

from enum import StrEnum


class Stop(StrEnum):
    COORDINATE = "coordinate"
    RENDER = "render"
    ENCODE = "encode"
    PREFILL = "prefill"
    DERENDER = "derender"
    REPLY = "reply"


class Kind(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    CHAT_RENDER = "chat_render"
    COMPLETION_RENDER = "completion_render"
    RESPONSES_RENDER = "responses_render"
    MESSAGES_RENDER = "messages_render"
    GENERATE = "generate"
    CHAT_DERENDER = "chat_derender"
    COMPLETION_DERENDER = "completion_derender"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


STREAMING_KINDS = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.GENERATE})
"""Kinds whose answer is an event stream when the body asks for one."""

URL_OF_KIND: dict[Kind, str] = {
    Kind.CHAT: "/v1/chat/completions",
    Kind.COMPLETION: "/v1/completions",
    Kind.CHAT_RENDER: "/v1/chat/completions/render",
    Kind.COMPLETION_RENDER: "/v1/completions/render",
    Kind.RESPONSES_RENDER: "/v1/responses/render",
    Kind.MESSAGES_RENDER: "/v1/messages/render",
    Kind.GENERATE: "/inference/v1/generate",
    Kind.CHAT_DERENDER: "/v1/chat/completions/derender",
    Kind.COMPLETION_DERENDER: "/v1/completions/derender",
    Kind.TOKENIZE: "/tokenize",
    Kind.DETOKENIZE: "/detokenize",
}

C, R, E, P, D, Y = (
    Stop.COORDINATE, Stop.RENDER, Stop.ENCODE, Stop.PREFILL, Stop.DERENDER, Stop.REPLY,
)  # fmt: skip

TEXT: dict[Kind, tuple[Stop, ...]] = {
    Kind.CHAT: (R, P, D, Y),
    Kind.COMPLETION: (R, P, D, Y),
    Kind.CHAT_RENDER: (R, Y),
    Kind.COMPLETION_RENDER: (R, Y),
    Kind.RESPONSES_RENDER: (R, Y),
    Kind.MESSAGES_RENDER: (R, Y),
    Kind.GENERATE: (P, Y),
    Kind.CHAT_DERENDER: (D, Y),
    Kind.COMPLETION_DERENDER: (D, Y),
    Kind.TOKENIZE: (R, Y),
    Kind.DETOKENIZE: (D, Y),
}
"""Requests without media, and those whose media never leave render."""

MEDIA: dict[Kind, tuple[Stop, ...]] = {
    Kind.CHAT: (R, C, E, C, P, D, Y),
    Kind.GENERATE: (E, C, P, Y),
}
"""Requests with items to encode."""

RAW_MEDIA: dict[str | None, tuple[Stop, ...]] = {
    None: (R, C, E, C, P, Y),
    "encode": (R, C, E, Y),
    "prefill": (R, P, Y),
}
"""A generate request that brings media instead of features, by the stage it is pinned to."""

ENCODE_ONLY: tuple[Stop, ...] = (E, Y)
PREFILL_ONLY: tuple[Stop, ...] = (P, Y)
"""A generate request on an ingress pinned to one stage, or whose items are encoded already."""
