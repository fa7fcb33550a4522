"""One model's parsers, put together: an output becomes reasoning, content and calls.

Reasoning is taken off first, calls are found in what is left; then what the request did not ask for
is dropped. As vllm.parser.abstract_parser and message_assembly. Knows no wire form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from workers.text.parsers import REASONING_FORMATS, TOOL_FORMATS
from workers.text.parsers.base import (
    Call,
    Delta,
    Parsed,
    ReasoningReader,
    Token,
    ToolContext,
    ToolReader,
    Vocabulary,
    merged,
    text_of,
)
from workers.text.parsers.forced import NamedReader, RequiredReader, forced_reader
from workers.text.reasoning import PromptReasoning, reasoning_rules
from workers.text.tokenizer import Tokenizer, require_tokens
from workers.text.tools import tool_parser_rules


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """What a request says about its message."""

    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Schemas of arguments, by function and argument; empty: no tools."""
    choice: Literal["none", "auto", "required"] | None = "none"
    forced: str | None = None
    """The function that must be called."""
    is_parallel: bool = True
    """More calls than one are wanted."""
    shows_reasoning: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_forced(self) -> bool:
        return self.forced is not None or self.choice == "required"

    @property
    def may_call(self) -> bool:
        return self.is_forced or self.choice in ("auto", None)


class Message(NamedTuple):
    reasoning: str | None
    content: str | None
    calls: Sequence[Call]


class MessageParsers:
    """The parsers that a deployment is set up with, for one tokenizer."""

    def __init__(self, reasoning: str | None, tools: str | None, tokenizer: Tokenizer) -> None:
        """Raise SettingsError for names nobody knows and tokenizers that lack a parser's marks."""
        self.reasoning, self.tools = reasoning, tools
        self._prompts = (
            PromptReasoning(reasoning_rules(reasoning), tokenizer) if reasoning else None
        )
        self._rules = tool_parser_rules(tools) if tools else None
        if self._rules is not None:
            require_tokens(tokenizer, self._rules.marks, f"the tool call parser {tools}")
        texts = {token: text for text, token in tokenizer.added_tokens.items()}
        special = {i: texts[i] for i in tokenizer.named_special_ids if i in texts}
        self._vocabulary = Vocabulary(tokenizer.added_tokens, special)
        self._reasoning_format = REASONING_FORMATS.get(reasoning) if reasoning else None
        self._tool_format = TOOL_FORMATS.get(tools) if tools else None
        self._special_ids = tokenizer.special_ids | tokenizer.named_special_ids

    @property
    def is_any(self) -> bool:
        return self.reasoning is not None or self.tools is not None

    def unread(self, options: ParseOptions) -> str | None:
        """The name of a parser that the request needs, render knows and nobody reads."""
        if self.reasoning and self._reasoning_format is None:
            return self.reasoning
        is_missing = self.tools is not None and self._tool_format is None
        may_call = options.may_call and bool(options.properties)
        return self.tools if is_missing and may_call else None

    @property
    def has_short_ids(self) -> bool:
        return self._tool_format is not None and self._tool_format.has_short_ids

    def reader(self, options: ParseOptions) -> "MessageReader":
        """For one request, whose parsers are not `unread`."""
        reasoning = None
        if self._reasoning_format is not None and self._prompts is not None:
            is_on = self._prompts.is_switched_on(options.template_kwargs)
            reasoning = self._reasoning_format.reader(self._vocabulary, is_on)
        return MessageReader(
            reasoning, self._prompts, self._tools(options), options, self._is_grammar(options)
        )

    def hidden_ids(self, options: ParseOptions) -> frozenset[int]:
        """Special tokens that are no part of a message and that no parser goes by."""
        marks = self._reasoning_format.marks if self._reasoning_format else ()
        if self._tool_format and (options.may_call or self._is_grammar(options)):
            marks += self._tool_format.marks
        known = {self._vocabulary.added[mark] for mark in marks if mark in self._vocabulary.added}
        return self._special_ids - known

    def _is_grammar(self, options: ParseOptions) -> bool:
        """Whether marks of calls are dropped even where none may be made."""
        if self._reasoning_format and not self._reasoning_format.is_grammar:
            return False
        reader = self._own_tools(options)
        return reader is not None and reader.is_grammar

    def _tools(self, options: ParseOptions) -> ToolReader | None:
        rules = self._rules
        if rules and options.is_forced and rules.reads_json and rules.grammar is None:
            return forced_reader(options.forced)
        return self._own_tools(options)

    def _own_tools(self, options: ParseOptions) -> ToolReader | None:
        if self._tool_format is None:
            return None
        context = ToolContext(
            properties=options.properties,
            is_forced=options.is_forced,
            passes_reasoning=self._reasoning_format is None,
            vocabulary=self._vocabulary,
        )
        return self._tool_format.reader(context)


class MessageReader:
    """Reads the outputs of one request."""

    def __init__(
        self,
        reasoning: ReasoningReader | None,
        prompts: PromptReasoning | None,
        tools: ToolReader | None,
        options: ParseOptions,
        is_grammar: bool,
    ) -> None:
        self._reasoning = reasoning
        self._prompts = prompts
        self._tools = tools if options.may_call or is_grammar else None
        self._has_tools = tools is not None
        self._options = options
        self._is_grammar = is_grammar
        self._is_json = isinstance(tools, NamedReader | RequiredReader)
        self._keeps_calls = options.is_forced or (
            options.choice == "auto" and bool(options.properties) and tools is not None
        )

    def whole(self, text: str, prompt_ids: Sequence[int] | None) -> Message:
        reasoning, content = self._split(text, prompt_ids)
        if not self._options.shows_reasoning:
            reasoning = None
        if self._tools is None:
            return Message(reasoning, content, ())
        parsed = self._tools.whole(content or "")
        content = self._content(parsed, content)
        if not self._keeps_calls:
            return Message(reasoning, content, ())
        calls = parsed.calls if self._options.is_parallel else parsed.calls[:1]
        return Message(reasoning, (content or "") if self._options.is_forced else content, calls)

    def _split(self, text: str, prompt_ids: Sequence[int] | None) -> tuple[str | None, str | None]:
        if self._reasoning is None:
            return None, text
        has_ended = bool(
            prompt_ids is not None
            and self._prompts is not None
            and self._prompts.rules.boundaries
            and self._prompts.has_ended(prompt_ids, self._options.template_kwargs)
        )
        return self._reasoning.whole(text, has_ended=has_ended)

    def _content(self, parsed: Parsed, content: str | None) -> str | None:
        """Of an output with calls what the parser left; else all, but for a grammar's marks."""
        if parsed.calls and self._options.may_call:
            return parsed.content if parsed.content and parsed.content.strip() else None
        is_blank = not (content or "").strip()
        if self._is_json or (self._options.is_forced and is_blank):
            return None
        return parsed.content if self._is_grammar or parsed.is_final else content

    def incremental(self, prompt_ids: Sequence[int]) -> "MessageStream":
        """`prompt_ids`: the whole prompt, which tells where reasoning stands."""
        has_ended = self._prompts is None or bool(
            self._prompts.has_ended(prompt_ids, self._options.template_kwargs)
        )
        return MessageStream(self, has_ended=has_ended)

    # What a stream needs of it.

    @property
    def options(self) -> ParseOptions:
        return self._options

    @property
    def reasoning(self) -> ReasoningReader | None:
        return self._reasoning

    @property
    def tools(self) -> ToolReader | None:
        return self._tools

    @property
    def keeps_calls(self) -> bool:
        return self._keeps_calls

    @property
    def has_tools(self) -> bool:
        """A tool parser runs, whether this request may call or not."""
        return self._has_tools


class MessageStream:
    """One output as it comes. What is given out never changes, however the tokens are dealt."""

    def __init__(self, reader: MessageReader, *, has_ended: bool) -> None:
        self._reader = reader
        self._coalesces = reader.tools is not None and reader.tools.coalesces
        self._tools = reader.tools.incremental() if reader.tools else None
        self._reasoning = None
        if reader.reasoning is not None and not has_ended:
            self._reasoning = reader.reasoning.incremental()
        self._num_reasoning = 0
        self.has_called = False
        """A call has been given out, or would have been but for `is_parallel`."""

    @property
    def num_reasoning_tokens(self) -> int:
        return self._reasoning.num_tokens if self._reasoning else self._num_reasoning

    def push(self, tokens: Sequence[Token], *, is_last: bool) -> list[Delta]:
        deltas: list[Delta] = []
        left: Sequence[Token] | None = tokens
        if self._reasoning is not None:
            deltas, left = self._reason(tokens)
        if left is not None:
            is_first = left is not tokens
            deltas += self._after_reasoning(left, is_first=is_first)
        if is_last:
            deltas += self._finish()
        return self._wanted(deltas)

    def _reason(self, tokens: Sequence[Token]) -> tuple[list[Delta], Sequence[Token] | None]:
        assert self._reasoning is not None
        deltas, left = self._reasoning.push(tokens)
        if not self._reasoning.has_ended:
            return deltas, None
        self._num_reasoning, self._reasoning = self._reasoning.num_tokens, None
        return deltas, list(left)

    def _after_reasoning(self, tokens: Sequence[Token], *, is_first: bool) -> list[Delta]:
        if self._tools is not None:
            return self._tools.push(tokens)
        text = text_of(tokens)
        # Without a tool parser vLLM tells of every step, also of one without text.
        is_told = bool(text) or not (self._reader.has_tools or is_first)
        return [Delta("content", text)] if is_told else []

    def _finish(self) -> list[Delta]:
        if self._reasoning is not None:
            return self._reasoning.finish()
        return self._tools.finish() if self._tools is not None else []

    def _wanted(self, deltas: list[Delta]) -> list[Delta]:
        options, keeps_calls = self._reader.options, self._reader.keeps_calls
        wanted = [
            delta
            for delta in deltas
            if (delta.channel != "reasoning" or options.shows_reasoning)
            and (delta.channel != "tool" or keeps_calls)
        ]
        self.has_called = self.has_called or any(d.channel == "tool" for d in wanted)
        if not options.is_parallel:
            wanted = [delta for delta in wanted if delta.tool == 0]
        return merged(wanted, coalesces=self._coalesces)
