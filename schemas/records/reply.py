"""What the last stop of a request tells the ingress that waits for it.

A whole answer is one `Reply` with an outcome. A stream has replies with a `StreamPiece` before it;
the first piece brings the `StreamHead`.
"""

from typing import Any, Literal

from pydantic import Field

from schemas.envelope import Hop, Outcome
from schemas.records.record import RecordModel
from schemas.routes import Kind

Channel = Literal["content", "reasoning", "tool"]


class StreamHead(RecordModel):
    """What all events of a stream share."""

    kind: Kind
    id: str
    """As the client sees it: chatcmpl-…, cmpl-… or generate-tokens-…"""
    model: str
    created: int
    """Unix seconds."""
    num_choices: int = 1
    """Of all prompts together."""
    prompt_tokens: int
    system_fingerprint: str | None = None
    role: str = "assistant"
    echo: str | None = None
    """Text of the last message, which a chat with `echo` repeats."""
    include_usage: bool = False
    continuous_usage: bool = False
    counts_reasoning: bool = False
    """Whether usage tells reasoning tokens: where a reasoning parser runs."""
    wants_ids: bool = False
    """`return_token_ids`."""
    prompt_token_ids: list[list[int]] | None = None
    """By prompt, with `return_token_ids`."""
    prompt_text: str | None = None
    mm_placeholders: dict[str, list[dict[str, int]]] | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    """Of a generate request."""


class TextPart(RecordModel):
    """Text that one channel of a choice has grown by."""

    channel: Channel = "content"
    tool: int = 0
    """Position of the tool call, in channel `tool`; its text is the call's arguments."""
    start: int
    """Characters of the channel before these."""
    text: str = ""
    tool_id: str | None = None
    """Id and name travel in the first part of a call."""
    tool_name: str | None = None


class StreamDelta(RecordModel):
    """What one choice has grown by, with its place in the whole."""

    choice: int
    """Index in the answer: prompt by prompt."""
    start: int
    """Output tokens of the choice before these."""
    token_ids: list[int] = Field(default_factory=list)
    parts: list[TextPart] = Field(default_factory=list)
    logprobs: list[dict[str, Any]] | None = None
    """One JSON-ready entry per token; None where they are not asked for."""
    reasoning_tokens: int = 0
    """Of all tokens of the choice so far."""
    finish_reason: str | None = None
    """Set in the last delta of the choice."""
    stop_reason: int | str | None = None


class StreamPiece(RecordModel):
    head: StreamHead | None = None
    deltas: list[StreamDelta] = Field(default_factory=list)


class Reply(RecordModel):
    """One record on `replies`. Exactly one of the last three is set."""

    id: str
    """Internal request id."""
    trace: list[Hop] = Field(default_factory=list)
    piece: StreamPiece | None = None
    outcome: Outcome | None = None
    outcome_name: str | None = None
    """Object of the store that holds an outcome too large for a record."""
