"""What goes before an output when the request asked for an echo (07 §1, §3). Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.responses import CompletionLogprobs
from schemas.usage import PromptLogprob
from workers.derender.logprobs import LogprobStyle
from workers.text.token_strings import TokenStrings

PromptLogprobs = Sequence[Mapping[int, PromptLogprob] | None]


def last_content(messages: Sequence[Mapping[str, Any]], role: str) -> str:
    """The text of the last message where it is of the answer's role, else nothing."""
    last = messages[-1] if messages else {}
    if last.get("role") != role:
        return ""
    content = last.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def echoed_logprobs(
    prompt_ids: Sequence[int],
    given: PromptLogprobs,
    strings: TokenStrings,
    style: LogprobStyle,
) -> CompletionLogprobs:
    """Of the prompt's tokens; the first has none, for nothing came before it."""
    result = CompletionLogprobs()
    for token, candidates in zip(prompt_ids, given, strict=True):
        _append(result, token, candidates, strings, style)
    return result


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Both in a row; the offsets of the second already count from the start of the first."""
    return CompletionLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def _append(
    result: CompletionLogprobs,
    token: int,
    candidates: Mapping[int, PromptLogprob] | None,
    strings: TokenStrings,
    style: LogprobStyle,
) -> None:
    own = candidates.get(token) if candidates else None
    start = result.text_offset[-1] + len(result.tokens[-1]) if result.tokens else 0
    result.text_offset.append(start)
    result.tokens.append(_shown(token, own, strings, style))
    result.token_logprobs.append(own.logprob if own else None)
    shown = list((candidates or {}).items())[: style.limit]
    top = {_shown(i, candidate, strings, style): candidate.logprob for i, candidate in shown}
    result.top_logprobs.append(top if candidates else None)


def _shown(
    token: int, given: PromptLogprob | None, strings: TokenStrings, style: LogprobStyle
) -> str:
    if style.as_ids:
        return f"token_id:{token}"
    if given is not None and given.decoded_token is not None:
        return given.decoded_token
    return strings.alone(token) or ""
