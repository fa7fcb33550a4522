"""Chat templates: Jinja as Hugging Face runs it, sandboxed.

Errors that a template raises are the caller's (400 with the innermost reason). Nothing limits what
one may take: whoever did not choose it renders it in a process (`template_processes`). Knows no
request schema and no tokenizer.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from types import CodeType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.optimizer import optimize
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import ApiError
from workers.text.content_format import ContentFormat, detect_content_format
from workers.text.continuation import CONTINUE_OR_START, cut_at_tag, with_continue_tag
from workers.text.private_tokens import PrivateTokens

_CACHED_TEMPLATES = 64
_MAX_REASON = 2000
"""Characters of an error: a template may quote everything it was given."""
# Arguments of Hugging Face's `apply_chat_template` that are no template variables.
_NOT_VARIABLES = {
    "chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
    "continue_final_message", "tools", "messages", "conversation",
}  # fmt: skip
_TAKEN = ("conversation", "model_config", "tokenizer")
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a "
    "chat template if the tokenizer does not define one."
)


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote; its body is kept."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _environment()


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """What is known of a template once it is read."""

    code: CodeType
    """With private spellings in it."""
    content_format: ContentFormat
    variables: frozenset[str]
    """That it reads and does not set."""


class ChatTemplate:
    """One compiled template."""

    def __init__(
        self, source: str, tokens: PrivateTokens, compiled: CompiledTemplate | None = None
    ) -> None:
        """`compiled` is what an earlier one, of the same source and tokens, was made into.

        Raise ApiError for a template that is no valid Jinja, or nested too deeply (MemoryError
        where brackets are, in some versions of Python).
        """
        self.source = source
        self._tokens = tokens
        self.compiled = compiled or _compiled(source, tokens)
        self.content_format = self.compiled.content_format
        self.variables = self.compiled.variables
        self._template = jinja2.Template.from_code(
            ENVIRONMENT, self.compiled.code, ENVIRONMENT.make_globals(None)
        )
        self.knows_developer = bool(re.search(r"""(["'])developer\1""", source))

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any],
        *,
        tools: list[dict[str, Any]] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt, with private spellings where the template wrote private tokens.

        Raise ApiError where the template refuses or fails.
        """
        self._check(variables, tools)
        if continue_final_message:
            if variables.get("add_generation_prompt"):
                raise ApiError(CONTINUE_OR_START)
            messages, final = with_continue_tag(messages, self.source)
        kept = {k: v for k, v in variables.items() if self._takes(k)}
        try:
            text = self._template.render(
                **{**(special_tokens or {}), "documents": None, "add_generation_prompt": False}
                | kept,
                messages=messages,
                tools=tools,
            )
        except (ApiError, MemoryError):
            raise
        except Exception as error:
            raise ApiError(self._tokens.reveal(_reason(error))[:_MAX_REASON]) from error
        return cut_at_tag(text, final) if continue_final_message else text

    def _check(self, variables: Mapping[str, Any], tools: Any) -> None:
        """Refuse what Hugging Face's `apply_chat_template` refuses."""
        taken = [name for name in _TAKEN if name in variables]
        if "messages" in variables and "messages" in self.variables:  # else it is never looked at
            taken.append("messages")
        if taken:
            raise ApiError(f"chat_template_kwargs must not hold {taken[0]!r}.")
        if variables.get("return_assistant_tokens_mask"):
            raise ApiError("return_assistant_tokens_mask cannot be asked of a render.")
        for name, value in (("tools", tools), ("documents", variables.get("documents"))):
            if value is not None and not _is_list_of_objects(value):
                raise ApiError(f"{name} must be a list of objects.")

    def _takes(self, name: str) -> bool:
        if name in _NOT_VARIABLES:
            return False
        return name in self.variables or name in ("documents", "add_generation_prompt")


def _compiled(source: str, tokens: PrivateTokens) -> CompiledTemplate:
    try:
        tree = ENVIRONMENT.parse(source)
        optimize(tree, ENVIRONMENT)  # in place: joins constants that are written in pieces
        content_format = detect_content_format(tree)
        variables = frozenset(meta.find_undeclared_variables(tree))
        tokens.rewrite(tree)
        return CompiledTemplate(ENVIRONMENT.compile(tree), content_format, variables)
    except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError) as error:
        raise ApiError(_reason(error)[:_MAX_REASON]) from error


def _is_list_of_objects(value: Any) -> bool:
    """Whatever is empty holds nothing that is no object."""
    return isinstance(value, list | dict | str) and all(isinstance(entry, dict) for entry in value)


def takes_late_system(source: str) -> bool:
    """Whether a system message may follow a user's.

    Asked of bare Jinja, without the extras of chat templates, because vLLM asks so: a template that
    needs them counts as one that refuses.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        environment.from_string(source).render(messages=turns, add_generation_prompt=False)
    except Exception:  # a template may fail in any way
        return False
    return True


class TemplateCache:
    """Compiled templates by source, bounded. Safe to share between threads."""

    def __init__(self, tokens: PrivateTokens) -> None:
        self._tokens = tokens
        self._templates: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._lock = Lock()

    def get(self, source: str) -> ChatTemplate:
        with self._lock:
            found = self._templates.get(source)
            if found is not None:
                self._templates.move_to_end(source)
                return found
        template = ChatTemplate(source, self._tokens)
        with self._lock:
            self._templates[source] = template
            if len(self._templates) > _CACHED_TEMPLATES:
                self._templates.popitem(last=False)
        return template


def _reason(error: BaseException) -> str:
    """The innermost template error's words, else the error's own."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, jinja2.TemplateError):
            return str(current)
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return str(error)
