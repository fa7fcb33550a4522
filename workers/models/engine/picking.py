"""Picks the next tokens of one request's live choices, keeping what that needs between steps.

The arithmetic is in `sampler`. Knows no model and no stopping.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from schemas.errors import ApiError
from workers.models.engine import sampler
from workers.models.engine.constraints import Constraints
from workers.models.engine.protocol import GenerationRequest
from workers.models.engine.sampling import Sampling
from workers.models.engine.stopping import StopRules
from workers.models.engine.structured import Matchers

Outputs = Sequence[Sequence[int]]


class Picker:
    """Created with its request. `outputs` are the live choices' tokens so far, in order."""

    def __init__(
        self,
        request: GenerationRequest,
        rules: StopRules,
        device: torch.device,
        constraints: Constraints,
    ) -> None:
        sampling = request.sampling
        self._sampling: Sampling = sampling
        self._min_tokens = rules.min_tokens
        self._prompt = torch.tensor(request.token_ids, device=device)
        self._generators = [_generator(seed, device) for seed in request.seeds]
        self._bad_words = constraints.bad_words
        self._matchers = None
        if constraints.structured is not None:
            self._matchers = Matchers(constraints.structured, sampling.n)
        # Once a request, not once a token.
        self._never_early = _ids(rules.never_early, device)
        self._allowed = _ids(set(sampling.allowed_token_ids or ()), device)
        self._biased = _ids(sampling.logit_bias, device)
        self._bias = torch.tensor(list(sampling.logit_bias.values()), device=device)

    def constrain(self, logits: Tensor, choices: Sequence[int]) -> Tensor:
        """Without what a structured output forbids; `choices` are the rows' choice indices."""
        return logits if self._matchers is None else self._matchers.mask(logits, choices)

    def accept(self, choice: int, token: int) -> None:
        """A choice has grown by a token."""
        if self._matchers is not None:
            self._matchers.accept(choice, token)

    def pick(self, logits: Tensor, outputs: Outputs, choices: Sequence[int]) -> list[int]:
        """One token per row. ApiError where the caller's parameters leave none."""
        logits = self._penalized(self._edited(logits, outputs), outputs)
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            raise ApiError("The sampling parameters leave no token to choose from.")
        if self._sampling.is_greedy:
            return logits.argmax(-1).tolist()
        kept = sampler.truncate(
            logits / self._sampling.temperature,
            min_p=self._sampling.min_p,
            top_k=self._sampling.top_k,
            top_p=self._sampling.top_p,
        )
        return sampler.draw(kept, [self._generators[i] for i in choices]).tolist()

    def _edited(self, logits: Tensor, outputs: Outputs) -> Tensor:
        """Allowed ids, bad words, minimum length and bias (03 §7.2, steps 3 to 5)."""
        logits = logits.clone()
        if self._sampling.allowed_token_ids is not None:
            logits = sampler.allow_only(logits, self._allowed)
        for row, output in enumerate(outputs):
            if self._bad_words:
                sampler.forbid(
                    logits, row, list(sampler.bad_last_tokens(self._bad_words, output))
                )
            if len(output) < self._min_tokens:
                sampler.forbid(logits, row, self._never_early)
        if not self._sampling.logit_bias:
            return logits
        return sampler.add_bias(logits, self._biased, self._bias.to(logits.dtype))

    def _penalized(self, logits: Tensor, outputs: Outputs) -> Tensor:
        sampling = self._sampling
        if not sampling.has_penalties:
            return logits
        counts = torch.zeros_like(logits)
        for row, output in enumerate(outputs):
            ids = torch.tensor(output, device=logits.device, dtype=torch.long)
            counts[row].index_add_(0, ids, torch.ones_like(ids, dtype=logits.dtype))
        if sampling.repetition_penalty != 1.0:
            seen = counts > 0
            seen[:, self._prompt] = True
            logits = sampler.repeat_penalty(logits, seen, sampling.repetition_penalty)
        return sampler.count_penalties(
            logits, counts, sampling.frequency_penalty, sampling.presence_penalty
        )


def _generator(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed % 2**63)


def _ids(ids: Collection[int], device: torch.device) -> Tensor:
    return torch.tensor(list(ids), device=device, dtype=torch.long)
