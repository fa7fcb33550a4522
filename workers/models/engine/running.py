"""One request on the device, step by step: pieces of its prompt, then a token for each live choice.

Owned by the engine's thread. Knows no other requests and no event loop.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

from workers.models.engine.constraints import Constraints
from workers.models.engine.finite import require_finite_peak
from workers.models.engine.language import LanguageModel
from workers.models.engine.logprobs import Row, chosen_candidates, top_candidates
from workers.models.engine.picking import Picker
from workers.models.engine.protocol import Choice, Generation, GenerationRequest
from workers.models.engine.stopping import Stopped, StopRules
from workers.models.engine.text import GrowingText
from workers.models.engine.tokens import TextSource


@dataclass(eq=False, slots=True)
class Line:
    """One choice while it grows."""

    index: int
    text: GrowingText | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Row] = field(default_factory=list)
    stopped: Stopped | None = None

    def push(self, token: int, rules: StopRules, *, keeps_stop: bool) -> None:
        self.tokens.append(token)
        self.stopped = rules.check(self.tokens)
        if self.text is None:
            return
        by_token = self.stopped is not None and self.stopped.by_token
        found = self.text.push(token, is_hidden=by_token and not keeps_stop)
        if found is not None:
            self.stopped = Stopped("stop", found)


class RunningRequest:
    """`Steps` of one generation; see `workers.models.engine.thread`."""

    def __init__(
        self,
        request: GenerationRequest,
        model: LanguageModel,
        source: TextSource | None,
        constraints: Constraints,
    ) -> None:
        self._request = request
        self._model = model
        self._rules = StopRules.of(
            request.sampling,
            max_tokens=request.max_tokens,
            eos_token_id=model.facts.eos_token_id,
            more_eos_ids=model.facts.more_eos_ids,
        )
        self._by_caller = any(item.by_caller for item in request.items)
        self._prompt = model.prepare(request.token_ids, request.items)
        self._cache: DynamicCache = model.new_cache()
        self._done_tokens = 0  # of the prompt
        self._prompt_logprobs: list[Row | None] = [None]
        self._lines = [Line(index, _text(request, source)) for index in range(request.sampling.n)]
        self._live = list(self._lines)
        self._picker = Picker(request, self._rules, model.device, constraints)

    def step(self) -> bool:
        if self._done_tokens < len(self._prompt):
            logits = self._prefill_piece()
            if self._done_tokens < len(self._prompt):
                return False
            logits = logits[-1:].expand(len(self._live), -1)
            if len(self._live) > 1:
                self._cache.batch_repeat_interleave(len(self._live))
        else:
            logits = self._decode()
        self._extend(logits)
        return not self._live

    def result(self) -> Generation:
        wanted = self._request.sampling.prompt_logprobs is not None
        return Generation(
            choices=tuple(self._choice(line) for line in self._lines),
            prompt_logprobs=tuple(self._prompt_logprobs) if wanted else None,
        )

    def _prefill_piece(self) -> Tensor:
        start = self._done_tokens
        stop = min(start + self._prompt.chunk_tokens, len(self._prompt))
        scored = self._request.sampling.prompt_logprobs
        keep = 1 if scored is None else stop - start
        logits = self._model.prefill(self._prompt, start, stop, self._cache, keep=keep)
        self._require_finite(logits)
        if scored is not None:
            following = self._request.token_ids[start + 1 : stop + 1]
            self._prompt_logprobs += top_candidates(logits[: len(following)], following, scored)
        self._done_tokens = stop
        return logits

    def _decode(self) -> Tensor:
        newest = [line.tokens[-1] for line in self._live]
        # Each live choice has the same number of tokens.
        position = self._prompt.next_position + len(self._live[0].tokens) - 1
        logits = self._model.decode(newest, position, self._cache)
        self._require_finite(logits)
        return logits

    def _require_finite(self, logits: Tensor) -> None:
        require_finite_peak(logits, "The model's output", by_caller=self._by_caller)

    def _extend(self, logits: Tensor) -> None:
        """Pick a token for each live choice and let go of those that end."""
        outputs = [line.tokens for line in self._live]
        choices = [line.index for line in self._live]
        masked = self._picker.constrain(logits, outputs, choices)
        tokens = self._picker.pick(masked, outputs, choices)
        for line, token, row in zip(self._live, tokens, self._score(masked, tokens), strict=True):
            if row is not None:
                line.logprobs.append(row)
            line.push(
                token,
                self._rules,
                keeps_stop=self._request.sampling.include_stop_str_in_output,
            )
        self._drop_finished()

    def _score(self, logits: Tensor, tokens: list[int]) -> list[Row] | list[None]:
        sampling = self._request.sampling
        if sampling.logprobs is None:
            return [None] * len(tokens)
        if sampling.logprob_token_ids is not None:
            return chosen_candidates(logits, tokens, sampling.logprob_token_ids)
        return top_candidates(logits, tokens, sampling.logprobs)

    def _drop_finished(self) -> None:
        kept = [i for i, line in enumerate(self._live) if line.stopped is None]
        if kept and len(kept) < len(self._live):
            self._cache.batch_select_indices(torch.tensor(kept, device=self._model.device))
        self._live = [self._live[i] for i in kept]

    def _choice(self, line: Line) -> Choice:
        assert line.stopped is not None, "a result is asked for once all choices have ended"
        return Choice(
            token_ids=tuple(line.tokens),
            finish_reason=line.stopped.finish_reason,
            stop_reason=line.stopped.stop_reason,
            text=line.text.text if line.text is not None else None,
            logprobs=None if self._request.sampling.logprobs is None else tuple(line.logprobs),
        )


def _text(request: GenerationRequest, source: TextSource | None) -> GrowingText | None:
    sampling = request.sampling
    if source is None or not (sampling.stop or request.wants_text):
        return None
    return GrowingText(
        source.stream(request.token_ids, sampling),
        stops=sampling.stop,
        min_tokens=sampling.min_tokens,
        keeps_stop=sampling.include_stop_str_in_output,
    )
