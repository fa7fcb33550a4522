"""Raw log-probabilities as candidates: the token itself first, then others by rank (03 §5.1).

Knows tensors, no text and no wire format.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.models.engine.protocol import Candidate, Row


def top_candidates(logits: Tensor, tokens: Sequence[int], count: int) -> list[Row]:
    """For each row: its token, then the `count` likeliest (all with -1), without repeats."""
    logprobs = logits.float().log_softmax(-1)
    count = logprobs.shape[-1] if count == -1 else min(count, logprobs.shape[-1])
    values, ids = logprobs.topk(count, dim=-1)
    own = _own(logprobs, tokens)
    ranked = zip(ids.tolist(), values.tolist(), strict=True)
    return [(mine, *_others(mine, *others)) for mine, others in zip(own, ranked, strict=True)]


def chosen_candidates(logits: Tensor, tokens: Sequence[int], ids: Sequence[int]) -> list[Row]:
    """For each row: its token, then the listed ids in their order (ranks by list position)."""
    logprobs = logits.float().log_softmax(-1)
    listed = logprobs[:, list(ids)].tolist()
    return [
        (mine, *_others(mine, ids, values))
        for mine, values in zip(_own(logprobs, tokens), listed, strict=True)
    ]


def _own(logprobs: Tensor, tokens: Sequence[int]) -> list[Candidate]:
    index = torch.tensor(list(tokens), device=logprobs.device).unsqueeze(-1)
    values = logprobs.gather(-1, index)
    ranks = (logprobs >= values).sum(-1)
    return [
        Candidate(token, value, rank)
        for token, value, rank in zip(
            tokens, values.squeeze(-1).tolist(), ranks.tolist(), strict=True
        )
    ]


def _others(mine: Candidate, ids: Sequence[int], values: Sequence[float]) -> list[Candidate]:
    return [
        Candidate(token, value, rank)
        for rank, (token, value) in enumerate(zip(ids, values, strict=True), start=1)
        if token != mine.token_id
    ]
