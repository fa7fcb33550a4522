"""Turns what an engine generated into a generate response (03 §5).

Knows no engine at work and no envelope rules beyond ids.
"""

import math
from collections.abc import Sequence
from typing import Any

from schemas.envelope import Envelope
from schemas.generate import (
    GenerateChoice,
    GenerateLogprob,
    GenerateLogprobEntry,
    GenerateLogprobs,
    GenerateResponse,
    GenerateTextChoice,
    GenerateTextResponse,
)
from schemas.responses import ChatLogprob, ChatLogprobEntry, ChatLogprobs
from schemas.usage import PromptLogprob, WeightVersionSpan
from workers.generated import response_fields
from workers.models.engine.protocol import Candidate, Choice, Generation, Row
from workers.models.engine.tokens import TextSource
from workers.prefill.prompts import Work

LOWEST = -9999.0
"""Stands for minus infinity, which JSON lacks."""


def response_of(
    work: Work,
    generation: Generation,
    envelope: Envelope,
    served_name: str,
    *,
    source: TextSource | None,
    ec_transfer_params: dict[str, Any] | None,
) -> dict[str, Any]:
    """Every key of 03 §5; strings of tokens need `source`."""
    shared = response_fields(
        work.prompt,
        envelope,
        served_name,
        completion_tokens=sum(len(choice.token_ids) for choice in generation.choices),
    ) | {
        "prompt_logprobs": _prompt_logprobs(work, generation, source),
        "ec_transfer_params": ec_transfer_params,
    }
    choices = list(enumerate(generation.choices))
    if work.request.output_mode == "text" and source is not None:
        texts = [_text_choice(index, choice, work, source) for index, choice in choices]
        return GenerateTextResponse(**shared, choices=texts).model_dump()
    tokens = [_token_choice(index, choice, work) for index, choice in choices]
    return GenerateResponse(**shared, choices=tokens).model_dump()


def _shared_choice(index: int, choice: Choice) -> dict[str, Any]:
    end = len(choice.token_ids)
    return {
        "index": index,
        "finish_reason": choice.finish and choice.finish.reason,
        "stop_reason": choice.finish and choice.finish.stop_reason,
        "token_ids": list(choice.token_ids),
        "weight_versions": [WeightVersionSpan(version="default", start=0, end=end)] if end else [],
    }


def _token_choice(index: int, choice: Choice, work: Work) -> GenerateChoice:
    logprobs = None
    if work.sampling.logprobs is not None:
        entries = [_token_entry(_cut(row, work)) for row in choice.logprobs]
        logprobs = GenerateLogprobs(content=entries)
    return GenerateChoice(**_shared_choice(index, choice), logprobs=logprobs)


def _text_choice(index: int, choice: Choice, work: Work, source: TextSource) -> GenerateTextChoice:
    logprobs = None
    if work.sampling.logprobs is not None:
        entries = _text_entries(choice.logprobs, choice.token_ids, (), work, source)
        logprobs = ChatLogprobs(content=entries)
    return GenerateTextChoice(**_shared_choice(index, choice), text=choice.text, logprobs=logprobs)


def token_entries(rows: Sequence[Row], work: Work) -> list[dict[str, Any]]:
    """Entries of `logprobs.content` in output mode `tokens`."""
    return [_token_entry(_cut(row, work)).model_dump() for row in rows]


def text_entries(
    rows: Sequence[Row],
    token_ids: Sequence[int],
    before: Sequence[int],
    work: Work,
    source: TextSource,
) -> list[dict[str, Any]]:
    """Entries of `logprobs.content` in output mode `text`; `before`: the output before these."""
    return [entry.model_dump() for entry in _text_entries(rows, token_ids, before, work, source)]


def _cut(row: Row, work: Work) -> Row:
    """As many candidates as were asked for, at least one; the sampled token comes first."""
    wanted = work.sampling.logprobs or 0
    return row if wanted == -1 else row[: max(wanted, 1)]


def _token_entry(row: Row) -> GenerateLogprobEntry:
    tops = [_token_logprob(candidate) for candidate in row]
    return GenerateLogprobEntry(**tops[0].model_dump(), top_logprobs=tops)


def _token_logprob(candidate: Candidate) -> GenerateLogprob:
    return GenerateLogprob(
        token_id=candidate.token_id,
        logprob=finite(candidate.logprob),
        rank=candidate.rank or None,
    )


def _text_entries(
    rows: Sequence[Row],
    token_ids: Sequence[int],
    before: Sequence[int],
    work: Work,
    source: TextSource,
) -> list[ChatLogprobEntry]:
    known = [*before, *token_ids]
    entries = []
    for position, row in enumerate(rows, start=len(before)):
        tops = [_text_logprob(c, known[:position], source) for c in _cut(row, work)]
        entries.append(ChatLogprobEntry(**tops[0].model_dump(), top_logprobs=tops))
    return entries


def _text_logprob(candidate: Candidate, before: Sequence[int], source: TextSource) -> ChatLogprob:
    text = source.token_text(candidate.token_id, before)
    return ChatLogprob(
        token=text, logprob=finite(candidate.logprob), bytes=list(text.encode("utf-8", "replace"))
    )


def _prompt_logprobs(
    work: Work, generation: Generation, source: TextSource | None
) -> list[dict[int, PromptLogprob] | None] | None:
    if generation.prompt_logprobs is None:
        return None
    ids = work.token_ids
    return [
        None if row is None else {c.token_id: _prompt_logprob(c, ids[:end], source) for c in row}
        for end, row in enumerate(generation.prompt_logprobs)
    ]


def _prompt_logprob(
    candidate: Candidate, before: Sequence[int], source: TextSource | None
) -> PromptLogprob:
    text = source.token_text(candidate.token_id, before) if source is not None else None
    return PromptLogprob(
        logprob=finite(candidate.logprob), rank=candidate.rank or None, decoded_token=text
    )


def finite(logprob: float) -> float:
    return max(logprob, LOWEST) if math.isfinite(logprob) else LOWEST
