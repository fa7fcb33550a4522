"""Log-probabilities by token id to log-probabilities by text, in both of OpenAI's shapes (04 §4.1).

Knows how tokens read; knows no request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.generate import GenerateLogprob, GenerateLogprobEntry, GenerateLogprobs
from schemas.responses import (
    ChatLogprob,
    ChatLogprobEntry,
    ChatLogprobs,
    CompletionLogprobs,
)
from workers.text.token_strings import CONTEXT, TokenStrings


@dataclass(frozen=True, slots=True)
class LogprobStyle:
    """What of the engine's candidates is shown, and how."""

    limit: int | None = None
    """Candidates per position; None: all."""
    as_ids: bool = False
    """`token_id:5` in place of text."""
    is_engines: bool = False
    """An engine knows an id outside the vocabulary as empty text; derender, as none."""


def chat_limit(*, top_logprobs: int, is_all: bool) -> int | None:
    return None if is_all or top_logprobs == -1 else top_logprobs


def completion_limit(logprobs: int | None, *, is_all: bool) -> int | None:
    """OpenAI's completions show one more than asked for: the sampled token itself."""
    return None if is_all or logprobs in (None, -1) else logprobs + 1


def chat_logprobs(
    given: GenerateLogprobs,
    strings: TokenStrings,
    style: LogprobStyle,
    before: Sequence[int] = (),
) -> ChatLogprobs:
    """`before`: sampled ids of earlier chunks, which may have begun a character."""
    if given.content is None:
        return ChatLogprobs()
    context = list(before)
    content = []
    for entry in given.content:
        content.append(_chat_entry(entry, strings, style, context[-CONTEXT:]))
        context.append(entry.token_id)
    return ChatLogprobs(content=content)


def context_after(before: Sequence[int], ids: Sequence[int]) -> list[int]:
    return [*before, *ids][-CONTEXT:]


def _chat_entry(
    entry: GenerateLogprobEntry, strings: TokenStrings, style: LogprobStyle, before: Sequence[int]
) -> ChatLogprobEntry:
    text = _text(entry.token_id, strings, style, before)
    candidates = entry.top_logprobs[: style.limit]
    return ChatLogprobEntry(
        token=_shown(entry.token_id, text, style),
        logprob=entry.logprob,
        # Of the text even where the token is shown as an id: so does vLLM, but for candidates.
        bytes=None if text is None else list(text.encode()),
        top_logprobs=[_candidate(c, strings, style, before) for c in candidates],
    )


def _candidate(
    given: GenerateLogprob, strings: TokenStrings, style: LogprobStyle, before: Sequence[int]
) -> ChatLogprob:
    text = _text(given.token_id, strings, style, before)
    token = _shown(given.token_id, text, style)
    is_unknown = text is None and not style.as_ids
    return ChatLogprob(
        token=token, logprob=given.logprob, bytes=None if is_unknown else list(token.encode())
    )


def _text(
    token_id: int, strings: TokenStrings, style: LogprobStyle, before: Sequence[int]
) -> str | None:
    text = strings.text(token_id, before)
    return "" if text is None and style.is_engines else text


def _shown(token_id: int, text: str | None, style: LogprobStyle) -> str:
    return f"token_id:{token_id}" if style.as_ids else text or ""


def completion_logprobs(
    chat: ChatLogprobs, given: GenerateLogprobs, text_offset: int = 0
) -> CompletionLogprobs:
    """The same as parallel lists; `given` tells where the engine had no candidates at all."""
    result = CompletionLogprobs()
    for entry, source in zip(chat.content or (), given.content or (), strict=True):
        top = {candidate.token: candidate.logprob for candidate in entry.top_logprobs}
        result.text_offset.append(text_offset)
        result.tokens.append(entry.token)
        result.token_logprobs.append(entry.logprob)
        result.top_logprobs.append(top if source.top_logprobs else None)
        text_offset += len(entry.token)
    return result


def end_offset(logprobs: CompletionLogprobs) -> int | None:
    """Where the next token's text begins; None where there was no token."""
    if not logprobs.tokens:
        return None
    return logprobs.text_offset[-1] + len(logprobs.tokens[-1])
