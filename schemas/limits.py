"""What a deployment allows, as plain numbers, for checks that need to know the model.

Built once per process from the settings and the model's facts. Knows no requests.
"""

from dataclasses import dataclass

from schemas.errors import ApiError


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Bounds of one served model; the last three are documented VLLM_MAX_* variables."""

    max_model_len: int
    vocab_size: int
    served_names: tuple[str, ...]
    """Accepted model names; the first is reported in answers."""
    max_logprobs: int = 20
    """-1: no bound."""
    max_num_seqs: int = 128
    max_n_sequences: int = 16384
    """VLLM_MAX_N_SEQUENCES: upper bound of `n`, and of choices given to derender."""
    max_stop_strings: int = 4
    """VLLM_MAX_STOP_STRINGS."""
    max_completion_prompts: int = 1024
    """VLLM_MAX_COMPLETION_PROMPTS."""

    @property
    def served_name(self) -> str:
        return self.served_names[0]

    @property
    def logprobs_bound(self) -> int:
        return self.vocab_size if self.max_logprobs == -1 else self.max_logprobs


PERMISSIVE = ModelLimits(max_model_len=2**31 - 1, vocab_size=2**31 - 1, served_names=("",))
"""For validating where no deployment is at hand: default counts, no model bounds."""


def check_model(name: str | None, limits: ModelLimits) -> None:
    """Refuse a model name that is not served; none at all means the one there is (01-render §8)."""
    if not name or name in limits.served_names:
        return
    raise ApiError(
        f"The model `{name}` does not exist. Valid aliases: {', '.join(limits.served_names)}.",
        status=404,
        type="NotFoundError",
        param="model",
    )
