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
from workers.models.engine.logprobs import chosen_candidates, top_candidates
from workers.models.engine.picking import Picker
from workers.models.engine.protocol import Finish, GenerationRequest, Progress, Row, TokenDelta
from workers.models.engine.stopping import Stopped, StopRules
from workers.models.engine.text import GrowingText
from workers.models.engine.tokens import TextSource


@dataclass(eq=False, slots=True)
class Line:
    """One choice while it grows."""

    index: int
    text: GrowingText | None
    tokens: list[int] = field(default_factory=list)
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

    def newest(self, row: Row | None) -> TokenDelta:
        """What the last push has brought."""
        stopped = self.stopped
        return TokenDelta(
            choice=self.index,
            token_ids=(self.tokens[-1],),
            logprobs=() if row is None else (row,),
            text=self.text.release(is_over=stopped is not None) if self.text else "",
            finish=Finish(stopped.finish_reason, stopped.stop_reason) if stopped else None,
        )


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
        self._prompt_logprobs: list[Row | None] | None = None
        if request.sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [None]
        self._news: list[TokenDelta] = []
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

    def result(self) -> Progress | None:
        if not self._news:
            return None
        progress = Progress(tuple(self._news), self._take_prompt_logprobs())
        self._news.clear()
        return progress

    def _take_prompt_logprobs(self) -> tuple[Row | None, ...] | None:
        rows, self._prompt_logprobs = self._prompt_logprobs, None
        return None if rows is None else tuple(rows)

    def _prefill_piece(self) -> Tensor:
        start = self._done_tokens
        stop = min(start + self._prompt.chunk_tokens, len(self._prompt))
        scored = self._request.sampling.prompt_logprobs
        keep = 1 if scored is None else stop - start
        logits = self._model.prefill(self._prompt, start, stop, self._cache, keep=keep)
        self._require_finite(logits)
        if scored is not None and self._prompt_logprobs is not None:
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
        masked = self._picker.constrain(logits, choices)
        tokens = self._picker.pick(masked, outputs, choices)
        for line, token, row in zip(self._live, tokens, self._score(masked, tokens), strict=True):
            keeps_stop = self._request.sampling.include_stop_str_in_output
            self._picker.accept(line.index, token)
            line.push(token, self._rules, keeps_stop=keeps_stop)
            self._news.append(line.newest(row))
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
