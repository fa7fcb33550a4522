"""Picks the next tokens of one request's live choices, keeping what that needs between steps.

The arithmetic is in `sampler`. Knows no model and no stopping.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.models.engine import sampler
from workers.models.engine.language import LanguageModel
from workers.models.engine.protocol import GenerationRequest
from workers.models.engine.sampling import Sampling
from workers.models.engine.stopping import StopRules
from workers.models.engine.structured import Constraint, Matchers
from workers.models.engine.tokens import TextSource

Outputs = Sequence[Sequence[int]]


class Picker:
    """Created with its request. `outputs` are the live choices' tokens so far, in order."""

    def __init__(
        self,
        request: GenerationRequest,
        rules: StopRules,
        model: LanguageModel,
        source: TextSource | None,
        constraint: Constraint | None,
    ) -> None:
        self._sampling: Sampling = request.sampling
        self._rules = rules
        self._prompt = torch.tensor(request.token_ids, device=model.device)
        self._generators = [_generator(seed, model.device) for seed in request.seeds]
        self._bad_words = source.bad_words(request.sampling.bad_words) if source else []
        self._matchers = None
        if constraint is not None:
            self._matchers = Matchers(constraint, request.sampling.n, model.facts.vocab_size)

    def constrain(self, logits: Tensor, choices: Sequence[int]) -> Tensor:
        """Without what a structured output forbids; `choices` are the rows' choice indices."""
        return logits if self._matchers is None else self._matchers.mask(logits, choices)

    def accept(self, choice: int, token: int) -> None:
        """A choice has grown by a token."""
        if self._matchers is not None:
            self._matchers.accept(choice, token)

    def pick(self, logits: Tensor, outputs: Outputs, choices: Sequence[int]) -> list[int]:
        """One token per row; `choices` are the rows' choice indices."""
        logits = self._penalized(self._edited(logits, outputs), outputs)
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
        sampling = self._sampling
        logits = logits.clone()
        if sampling.allowed_token_ids is not None:
            logits = sampler.allow_only(logits, sampling.allowed_token_ids)
        for row, output in enumerate(outputs):
            sampler.forbid(logits, row, sampler.bad_last_tokens(self._bad_words, output))
            if len(output) < self._rules.min_tokens:
                sampler.forbid(logits, row, self._rules.never_early)
        return sampler.add_bias(logits, sampling.logit_bias) if sampling.logit_bias else logits

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
