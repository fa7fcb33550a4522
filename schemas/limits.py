"""What a deployment allows, as plain numbers, for checks that need to know the model.

Built once per process from the settings and the model's facts. Knows no requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import ApiError

# What one body may hold, in docs/limits.md too. Far above what is asked in earnest; each bounds
# work that grows with it.
MAX_VALUES = 1_000_000
"""JSON values of a body."""
MAX_NESTING = 200
"""Levels of a body; beyond them the encoders between here and the answer give up."""
MAX_PARAMETERS = 1_024
"""Keys of a body and of each object in it that has parameters, unknown ones included."""
MAX_KEYS = 65_536
"""Keys of any object."""
MAX_REQUEST_ID = 1024
"""Characters of a caller's request id."""
MAX_PARTS = 8_192
"""Content parts of all messages of a request together."""
MAX_CALLS = 8_192
"""Tool calls of all messages of a request together."""
MAX_CHOICE_CHARACTERS = 64 * 1024
"""Strings of `structured_outputs.choice` together."""

MAX_ENTRIES: Mapping[str, int] = {
    "messages": 8_192,
    "input": 8_192,
    "tools": 1_024,
    "documents": 1_024,
    "stop": 1_024,
    "stop_sequences": 1_024,
    "bad_words": 4_096,
    "logit_bias": 16_384,
    "stop_token_ids": 16_384,
    "logprob_token_ids": 16_384,
    "allowed_token_ids": 262_144,
    "content_parts": 8_192,
    "include": 64,
    "choice": 1_024,
}
"""Entries of a list or an object, by parameter; stricter limits of a model come on top."""

MAX_CHARACTERS: Mapping[str, int] = {
    "model": 4_096,
    "request_id": MAX_REQUEST_ID,
    "session_id": 4_096,
    "user": 4_096,
    "regex": 16 * 1024,
    "whitespace_pattern": 1_024,
    "grammar": 64 * 1024,
    "json": 256 * 1024,
    "structural_tag": 256 * 1024,
}
"""Characters of a string, by parameter."""

MAX_INNER_VALUES: Mapping[str, int] = {
    "messages": 262_144,
    "input": 262_144,
    "tools": 65_536,
    "response_format": 16_384,
    "json": 16_384,
    "text": 16_384,
    "output_config": 16_384,
    "tool_choice": 1_024,
    "documents": 65_536,
    "metadata": 4_096,
    "chat_template_kwargs": 16_384,
    "mm_processor_kwargs": 4_096,
    "media_io_kwargs": 4_096,
    "vllm_xargs": 16_384,
    "extra_args": 16_384,
    "kv_transfer_params": 131_072,
    "ec_transfer_params": 131_072,
    "repetition_detection": 64,
    "stream_options": 64,
    "reasoning": 64,
    "thinking": 64,
}
"""JSON values at all levels below a parameter."""

MAX_INNER_CHARACTERS: Mapping[str, int] = {
    "response_format": 256 * 1024,
    "json": 256 * 1024,
    "text": 256 * 1024,
    "output_config": 256 * 1024,
    "metadata": 256 * 1024,
    "vllm_xargs": 1024 * 1024,
    "kv_transfer_params": 1024 * 1024,
    "ec_transfer_params": 1024 * 1024,
}
"""Characters of all keys and strings below a parameter, together."""


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
        f"The model `{name[:200]}` does not exist. "
        f"Valid aliases: {', '.join(limits.served_names)}.",
        status=404,
        type="NotFoundError",
        param="model",
    )
