"""What a tool parser changes of a request before it is rendered: constraints and special tokens.

01-render §4.6, 04-derender §7. Parsing outputs is elsewhere; knows no template.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runtime.errors import SettingsError
from schemas.errors import ApiError
from schemas.sampling import StructuredOutputs
from workers.text import call_schemas, structural_tags
from workers.text.glm_tags import glm
from workers.text.structural_tags import Choice, Format

StrictLevel = Literal["auto", "function", "parameter"]
"""How much of a call is held to its form: what the request says, the envelope, also the schema."""

_LEVELS: tuple[StrictLevel, ...] = ("auto", "function", "parameter")


@dataclass(frozen=True, slots=True)
class ToolWishes:
    """The part of a request that tool parsers look at and change."""

    functions: Sequence[dict[str, Any]] = ()
    """Definitions: name, parameters, strict …; empty: no tools."""
    choice: str | None = "none"
    """none, auto or required."""
    forced: str | None = None
    """Name of the function that must be called."""
    is_parallel: bool = True
    structured_outputs: StructuredOutputs | None = None
    is_constrained: bool = False
    """By `structured_outputs` that some parsers leave alone even where a call must be made."""
    skip_special_tokens: bool | None = None
    """None: as the server's defaults say."""

    @property
    def may_call(self) -> bool:
        return bool(self.functions) and (self.forced is not None or self.choice != "none")


@dataclass(frozen=True, slots=True)
class ToolParserRules:
    """How one parser's model writes calls."""

    grammar: Callable[[Sequence[dict[str, Any]], Choice], Format] | None = None
    """None: required and named calls are held to a JSON schema instead, or to nothing."""
    level: StrictLevel = "auto"
    """Where the server is not told another."""
    reads_json: bool = True
    """Whether required and named calls may come as plain JSON."""
    lists_calls: bool = False
    """Required and named calls alike come as a list of names and arguments, unless the request has
    a constraint of its own."""
    keeps_special_tokens: Literal["never", "with_tools", "always"] = "never"
    """Marks of calls are special tokens in some models: they must not be left out."""
    marks: tuple[str, ...] = ()
    """Tokens that the parser goes by: a model without them cannot have it."""


_HERMES = ToolParserRules(structural_tags.hermes, keeps_special_tokens="with_tools")
_LLAMA = ToolParserRules(structural_tags.llama, marks=("<|python_tag|>",))
_QWEN_XML = ToolParserRules(structural_tags.qwen3_coder, keeps_special_tokens="always")
_ENGINE = ToolParserRules(keeps_special_tokens="always")
_GLM = ToolParserRules(glm, level="function", keeps_special_tokens="always")
_DEEPSEEK_MARKS = tuple(
    f"<｜tool▁{what}｜>" for what in ("calls▁begin", "calls▁end", "call▁begin", "call▁end")
)

TOOL_PARSERS: dict[str, ToolParserRules] = {
    "hermes": _HERMES,
    "qwen3_json": _HERMES,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "qwen3_coder": _QWEN_XML,
    "qwen3_xml": _QWEN_XML,
    "mistral": ToolParserRules(
        reads_json=False,
        lists_calls=True,
        keeps_special_tokens="always",
        marks=("[TOOL_CALLS]",),
    ),
    "deepseek_v3": ToolParserRules(structural_tags.deepseek_v3, marks=_DEEPSEEK_MARKS),
    "deepseek_v31": ToolParserRules(structural_tags.deepseek_v31, marks=_DEEPSEEK_MARKS),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": _ENGINE,
    "seed_oss": _ENGINE,
    "gemma4": ToolParserRules(reads_json=False, keeps_special_tokens="always"),
    "granite4": ToolParserRules(keeps_special_tokens="with_tools"),
    "pythonic": ToolParserRules(),
    "llama4_pythonic": ToolParserRules(),
    "olmo3": ToolParserRules(),
    "xlam": ToolParserRules(),
    "phi4_mini_json": ToolParserRules(),
    "internlm": ToolParserRules(keeps_special_tokens="with_tools"),
    "jamba": ToolParserRules(
        keeps_special_tokens="with_tools", marks=("<tool_calls>", "</tool_calls>")
    ),
}


def tool_parser_rules(name: str) -> ToolParserRules:
    """Raise SettingsError for a name nobody knows."""
    rules = TOOL_PARSERS.get(name)
    if rules is None:
        known = ", ".join(sorted(TOOL_PARSERS))
        raise SettingsError(f"unknown tool call parser {name!r}; known are {known}")
    return rules


def adjusted(wishes: ToolWishes, rules: ToolParserRules, level: StrictLevel | None) -> ToolWishes:
    """The wishes as the parser wants them. Raise ApiError for what no grammar can express."""
    if wishes.functions and (wishes.forced or wishes.choice in ("auto", "required")):
        wishes = _with_grammar(wishes, rules, level or rules.level)
    if rules.reads_json and rules.grammar is None:
        wishes = _with_json_schema(wishes)
    if rules.lists_calls and not wishes.is_constrained:
        wishes = _with_list_schema(wishes)
    keeps = rules.keeps_special_tokens
    if keeps == "always" or (keeps == "with_tools" and wishes.may_call):
        wishes = replace(wishes, skip_special_tokens=False)
    return wishes


def _with_grammar(wishes: ToolWishes, rules: ToolParserRules, level: StrictLevel) -> ToolWishes:
    is_auto = wishes.choice == "auto" and wishes.forced is None
    structured = wishes.structured_outputs
    if not wishes.is_parallel and not (is_auto and structured is not None):
        level = max(level, "function", key=_LEVELS.index)  # counting calls needs their envelope
    is_free = level == "auto" and not any(f.get("strict") is True for f in wishes.functions)
    if rules.grammar is None or (is_auto and is_free):
        return wishes
    choice: Choice = "forced" if wishes.forced else "required"
    if is_auto and structured is None:
        choice = "auto"
    functions = _functions(wishes, level)
    if wishes.forced and len(functions) != 1:
        raise ApiError("Forced tool choice must resolve to exactly one tool.")
    form = rules.grammar(functions, choice)
    if not wishes.is_parallel:
        form = structural_tags.one_call(form)
    if is_auto and structured is not None:
        form = structural_tags.either(form, _as_format(structured))
    tag = json.dumps({"type": "structural_tag", "format": form})
    return replace(wishes, structured_outputs=StructuredOutputs(structural_tag=tag))


def _functions(wishes: ToolWishes, level: StrictLevel) -> list[dict[str, Any]]:
    return [
        {**f, "strict": level == "parameter" or f.get("strict") is True}
        for f in wishes.functions
        if wishes.forced in (None, f["name"])
    ]


def _as_format(given: StructuredOutputs) -> Format:
    """A request's own constraint inside a structural tag."""
    if given.json_object:
        return structural_tags.json_schema({"type": "object"})
    if given.json_ is not None:
        schema = json.loads(given.json_) if isinstance(given.json_, str) else given.json_
        return structural_tags.json_schema(schema)
    if given.regex is not None:
        return {"type": "regex", "pattern": given.regex}
    if given.choice is not None:
        words = [{"type": "const_string", "value": word} for word in given.choice]
        return structural_tags.either(*words)
    if given.grammar is not None:
        return {"type": "grammar", "grammar": given.grammar}
    return _format_of_tag(json.loads(given.structural_tag or "{}"))


def _format_of_tag(tag: dict[str, Any]) -> Format:
    if "structures" not in tag:
        form: Format = structural_tags.completed(tag["format"])
        return form
    tags = [
        structural_tags.tag(s["begin"], structural_tags.json_schema(s["schema"]), s["end"])
        for s in tag["structures"]
    ]
    return structural_tags.triggered(tag["triggers"], tags)


def _with_json_schema(wishes: ToolWishes) -> ToolWishes:
    structured = wishes.structured_outputs
    if not wishes.functions or (structured is not None and structured.structural_tag is not None):
        return wishes
    if wishes.forced is not None:
        named = [f for f in wishes.functions if f["name"] == wishes.forced]
        schema = call_schemas.parameters(named[0])
    elif wishes.choice == "required":
        schema = call_schemas.calls(wishes.functions, is_parallel=wishes.is_parallel)
        left = [call_schemas.without_definitions(f) for f in wishes.functions]
        wishes = replace(wishes, functions=left)
    else:
        return wishes
    return replace(wishes, structured_outputs=StructuredOutputs(json=schema))


def _with_list_schema(wishes: ToolWishes) -> ToolWishes:
    if not wishes.functions or not (wishes.forced or wishes.choice == "required"):
        return wishes
    schema = call_schemas.mistral(wishes.functions, wishes.forced)
    return replace(wishes, structured_outputs=StructuredOutputs(json=schema))
