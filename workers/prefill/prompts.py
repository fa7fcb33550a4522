"""An entry of the part `prompts` as prefill reads it, checked against what this model can do.

Knows no engine and no encoder cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from schemas.checks import check_generate
from schemas.envelope import Item, derive_seed
from schemas.errors import DecodeError
from schemas.generate import GenerateRequest
from schemas.limits import ModelLimits
from schemas.refusals import bad_request, not_implemented
from schemas.routes import Kind
from schemas.sampling import SamplingParams
from workers.generated import Prompt
from workers.models.engine.facts import ModelFacts
from workers.models.engine.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Work:
    """One prompt to continue."""

    index: int
    prompt: Prompt
    request: GenerateRequest
    sampling: Sampling
    items: tuple[Item, ...]
    max_tokens: int

    @property
    def token_ids(self) -> list[int]:
        return self.request.token_ids

    def seeds(self, request_id: str) -> tuple[int, ...]:
        """One per choice; derived from the request where the caller gave none, and never shown."""
        seed, choices = self.sampling.seed, range(self.sampling.n)
        if seed is None:
            return tuple(derive_seed(request_id, self.index, choice) for choice in choices)
        return tuple(seed + choice for choice in choices)


def read_work(
    index: int,
    prompt: Prompt,
    items: Sequence[Item],
    kind: Kind,
    facts: ModelFacts,
    limits: ModelLimits,
) -> Work:
    """Raise ApiError for what this server cannot answer, in the order of 03 §2 B."""
    request = _parsed(prompt, limits)
    check_generate(request, limits)
    _refuse_later_parts(request)
    return Work(
        index=index,
        prompt=prompt,
        request=request,
        sampling=Sampling.of_wire(dict(prompt.get("sampling_params") or {})),
        items=tuple(items),
        max_tokens=max_tokens(request.sampling_params, len(request.token_ids), kind, facts),
    )


def _parsed(prompt: Prompt, limits: ModelLimits) -> GenerateRequest:
    """The body was validated on its way in; the payloads are the items', so not looked at here."""
    bare = {key: value for key, value in prompt.items() if key not in ("features", "content_parts")}
    try:
        return GenerateRequest.model_validate(bare, context={"limits": limits})
    except ValidationError as error:
        raise DecodeError(f"not a prompt: {error}") from error


def _refuse_later_parts(request: GenerateRequest) -> None:
    """A thinking_token_budget is accepted without effect, as in vLLM without a reasoning setup."""
    params = request.sampling_params
    if request.output_mode == "derender":
        raise not_implemented("output_mode='derender' is not implemented yet.")
    if params.prompt_logprob_token_ids is not None:
        raise bad_request(
            "prompt_logprob_token_ids is not supported by this engine.", "prompt_logprob_token_ids"
        )


def max_tokens(params: SamplingParams, num_prompt: int, kind: Kind, facts: ModelFacts) -> int:
    """Tokens to generate at most (01 §5.2).

    A generate body without the key asks for the server's default. Other kinds come from render,
    which leaves the key out only for the schema's default.
    """
    room = facts.max_model_len - num_prompt
    if kind is Kind.GENERATE and not params.gave("max_tokens"):
        bounds = [room, facts.default_max_tokens, facts.override_max_tokens]
    else:
        bounds = [room, params.max_tokens]
    return min(bound for bound in bounds if bound is not None)


def describe(item: Item) -> dict[str, Any]:
    """For logs: no payload."""
    return {"modality": item.modality, "mm_hash": item.mm_hash, "length": item.length}
