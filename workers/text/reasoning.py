"""What a reasoning parser says of a rendered prompt: where thinking stands when the answer starts.

01-render §7.4. Parsing outputs is elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.errors import SettingsError
from workers.text.tokenizer import Tokenizer, require_tokens


@dataclass(frozen=True, slots=True)
class ReasoningRules:
    """How one parser's model marks its thinking."""

    start: str = "<think>"
    end: str = "</think>"
    also_end: tuple[str, ...] = ()
    """Marks that end thinking without saying so: a call starts."""
    boundaries: tuple[str, ...] = ()
    """Tokens behind which an earlier turn lies: what it closed does not count."""
    switches: tuple[str, ...] = ()
    """Template variables that switch thinking on or off; none: it is on."""
    thinks_unasked: bool = True
    """Whether it is on where no switch is set."""
    keeps_special_tokens: bool = False
    needs: tuple[str, ...] = ()
    """Tokens that the parser goes by: a model without them cannot have it."""
    is_optional: bool = False
    """A model without the marks does not think."""
    sees_prompts: bool = True
    """Whether the parser can tell from a prompt at all."""


_THINK = ReasoningRules(needs=("<think>", "</think>"))
_QWEN3 = ReasoningRules(
    also_end=("<tool_call>",),
    boundaries=("<|im_start|>", "<|im_end|>"),
    switches=("enable_thinking",),
    keeps_special_tokens=True,
)
_GLM = ReasoningRules(
    also_end=("<tool_call>",),
    boundaries=("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    switches=("thinking", "enable_thinking"),
    keeps_special_tokens=True,
)
_MISTRAL = ReasoningRules(
    start="[THINK]",
    end="[/THINK]",
    also_end=("[TOOL_CALLS]",),
    keeps_special_tokens=True,
    needs=("[TOOL_CALLS]",),
    is_optional=True,
)

REASONING_PARSERS: dict[str, ReasoningRules] = {
    "qwen3": _QWEN3,
    "deepseek_r1": _THINK,
    "step5": _THINK,
    "mistral": _MISTRAL,
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": ReasoningRules(sees_prompts=False),
    "deepseek_v3": ReasoningRules(switches=_GLM.switches, thinks_unasked=False),
}


def reasoning_rules(name: str) -> ReasoningRules:
    """Raise SettingsError for a name nobody knows."""
    rules = REASONING_PARSERS.get(name)
    if rules is None:
        known = ", ".join(sorted(REASONING_PARSERS))
        raise SettingsError(f"unknown reasoning parser {name!r}; known are {known}")
    return rules


class PromptReasoning:
    """Decides for one model whether a prompt leaves its thinking open."""

    def __init__(self, rules: ReasoningRules, tokenizer: Tokenizer) -> None:
        """Raise SettingsError where the model has not the marks that it needs."""
        self.rules = rules
        require_tokens(tokenizer, rules.needs, "the reasoning parser")
        self._start = tokenizer.token_id(rules.start)
        marks = (rules.end, *rules.also_end)
        self._ends = {token for token in map(tokenizer.token_id, marks) if token is not None}
        end = tokenizer.token_id(rules.end)
        self.end_ids = frozenset() if end is None else frozenset({end})
        """The token that ends thinking in an output, where the model has one."""
        self._boundaries = {tokenizer.token_id(text) for text in rules.boundaries} - {None}

    def has_ended(
        self, prompt_ids: Sequence[int], template_kwargs: Mapping[str, Any]
    ) -> bool | None:
        """None: nobody knows."""
        if not self.rules.sees_prompts:
            return None
        is_missing = self.rules.is_optional and self._start is None
        if is_missing or not self.is_switched_on(template_kwargs):
            return True
        for token in reversed(prompt_ids):
            if token in self._ends:
                return True
            if token == self._start or token in self._boundaries:
                break
        return False

    def is_switched_on(self, template_kwargs: Mapping[str, Any]) -> bool:
        """Whether a request with these template variables wants the model to think."""
        if not self.rules.switches:
            return True
        given = [template_kwargs.get(switch) for switch in self.rules.switches]
        is_set = any(value is not None for value in given)
        return any(given) if is_set else self.rules.thinks_unasked
