"""From logits to the next token: pure tensor functions in the order of 03 §7.2.

Shapes: logits are float32 [rows, vocabulary]; parameters are one value for all rows, since
the rows of a call belong to one request. Functions return new tensors. Knows no requests and
no model.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

NEVER = float("-inf")


def allow_only(logits: Tensor, token_ids: Tensor) -> Tensor:
    """`token_ids`: int64, each once."""
    kept = torch.full_like(logits, NEVER)
    kept[:, token_ids] = logits[:, token_ids]
    return kept


def forbid(logits: Tensor, row: int, token_ids: Tensor | Sequence[int]) -> None:
    """In place, for one row."""
    logits[row, token_ids] = NEVER


def bad_last_tokens(bad_words: Iterable[Sequence[int]], output: Sequence[int]) -> Iterable[int]:
    """Last tokens of the words whose other tokens the output ends with (03 §7.4)."""
    for word in bad_words:
        prefix = list(word[:-1])
        if not prefix or list(output[-len(prefix) :]) == prefix:
            yield word[-1]


def add_bias(logits: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """`values` [ids] are added to the logits of `token_ids`, int64."""
    return logits.index_add(1, token_ids, values.expand(logits.shape[0], -1))


def repeat_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """`seen`: bool [rows, vocabulary], tokens of prompt or output."""
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)


def count_penalties(logits: Tensor, counts: Tensor, frequency: float, presence: float) -> Tensor:
    """`counts`: [rows, vocabulary], how often each token was put out."""
    return logits - frequency * counts - presence * (counts > 0)


def truncate(logits: Tensor, *, min_p: float, top_k: int, top_p: float) -> Tensor:
    """Remove what min_p, then top_k, then top_p exclude; expects the temperature to be applied."""
    if min_p > 0:
        probs = logits.softmax(-1)
        logits = logits.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), NEVER)
    if 0 < top_k < logits.shape[-1]:
        kth = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, NEVER)
    return _keep_top_p(logits, top_p) if top_p < 1 else logits


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    ascending, order = logits.sort(dim=-1)
    excluded = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    excluded[:, -1] = False  # the likeliest always stays
    return logits.masked_fill(excluded.scatter(-1, order, excluded), NEVER)


def draw(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One token per row, each from its own random stream."""
    noise = torch.stack(
        [
            torch.empty(logits.shape[-1], device=logits.device).exponential_(generator=generator)
            for generator in generators
        ]
    )
    return (logits.softmax(-1) / noise).argmax(-1)
