"""What the configured tool and reasoning parsers say about a request at render time.

01-render §4.6 and §7.4. Knows no template and no wire form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.errors import SettingsError
from runtime.settings import ModelSettings
from schemas.chat import ChatCompletionRequest
from schemas.fields import NamedToolChoice
from schemas.refusals import bad_request
from workers.text.reasoning import PromptReasoning, reasoning_rules
from workers.text.tokenizer import Tokenizer, require_tokens
from workers.text.tools import StrictLevel, ToolWishes, adjusted, tool_parser_rules


class Parsers:
    """Of one server; either may be missing."""

    def __init__(
        self, settings: ModelSettings, strict_level: StrictLevel | None, tokenizer: Tokenizer
    ) -> None:
        """Raise SettingsError for names nobody knows and tokenizers that lack a parser's marks."""
        tools, reasoning = settings.tool_call_parser, settings.reasoning_parser
        takes_auto = settings.enable_auto_tool_choice
        self._strict_level = strict_level
        if takes_auto and not tools:
            raise SettingsError("--enable-auto-tool-choice requires --tool-call-parser")
        self._tools = tool_parser_rules(tools) if tools and takes_auto else None
        if self._tools is not None:
            require_tokens(tokenizer, self._tools.marks, f"the tool call parser {tools}")
        self._reasoning = (
            PromptReasoning(reasoning_rules(reasoning), tokenizer) if reasoning else None
        )

    @property
    def has_reasoning(self) -> bool:
        return self._reasoning is not None

    def check_tool_choice(self, request: ChatCompletionRequest) -> None:
        """Refuse a wish for calls that nothing could read."""
        choice = request.tool_choice
        if self._tools is not None or choice in (None, "none"):
            return
        if choice == "auto":
            raise bad_request(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be'
                " set"
            )
        named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        wish = f'"{choice}"' if named is None else f'function "{named}"'
        raise bad_request(f"tool_choice={wish} requires --tool-call-parser to be set")

    def adjusted(self, wishes: ToolWishes) -> ToolWishes:
        """What the parsers make of the request."""
        if self._reasoning is not None and self._reasoning.rules.keeps_special_tokens:
            wishes = replace(wishes, skip_special_tokens=False)
        if self._tools is None or (self._reasoning is None and wishes.choice == "none"):
            return wishes
        return adjusted(wishes, self._tools, self._strict_level)

    def reasoning_ended(
        self, request: ChatCompletionRequest, ids: Sequence[int], template_kwargs: Mapping[str, Any]
    ) -> bool | None:
        """None: no parser, so nobody knows."""
        if not request.include_reasoning:
            return True
        if self._reasoning is None:
            return None
        return self._reasoning.has_ended(ids, template_kwargs)
