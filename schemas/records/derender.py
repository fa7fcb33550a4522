"""What prefill tells derender while it generates.

An envelope with `run` set carries all tokens so far (design: a full delta); a `TokensRecord` only
what came since. Both have the request's id as key, so that one derender worker sees all of them.
"""

from typing import Any

from schemas.records.record import RecordModel

TOKENS_CONTENT_TYPE = "application/vnd.tokenfleet.tokens"


class ChoiceTokens(RecordModel):
    """What one choice of one prompt has grown by."""

    prompt: int = 0
    choice: int
    start: int
    """Output tokens before these."""
    token_ids: list[int]
    logprobs: list[dict[str, Any]] | None = None
    """Entries of a generate response's `logprobs.content`, one per token, where asked for."""
    finish_reason: str | None = None
    """Set once the choice has ended."""
    stop_reason: int | str | None = None


class TokensRecord(RecordModel):
    id: str
    """Internal request id."""
    run: str
    """The execution of prefill that made the tokens; another one begins at token 0 again."""
    choices: list[ChoiceTokens]
