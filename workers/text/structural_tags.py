"""Grammars that hold a model to a parser's way of writing tool calls, as xgrammar structural tags.

One function per way of writing; the result is plain data. Knows no request.
"""

from collections.abc import Sequence
from typing import Any, Literal

Format = dict[str, Any]
Choice = Literal["auto", "required", "forced"]
"""Whether a call may, must, or must once (a named tool) be made."""

_THINK = ["<think>", "</think>"]
_ENDS = {"at_least_one": False, "stop_after_first": False}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "json_schema": {
        "style": "json", "any_order": False, "max_whitespace_cnt": None, "excludes": [],
    },
    "any_text": {"excludes": [], "max_tokens": None, "max_chars": None},
    "any_tokens": {"exclude_tokens": [], "max_tokens": None},
    "exclude_token": {"exclude_tokens": []},
    "triggered_tags": {**_ENDS, "excludes": []},
    "token_triggered_tags": {"exclude_tokens": [], **_ENDS},
    "tags_with_separator": _ENDS,
    "dispatch": {"loop": True, "excludes": []},
    "token_dispatch": {"loop": True, "exclude_tokens": []},
}  # fmt: skip


def json_schema(schema: Any, style: str = "json") -> Format:
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def any_text(excludes: Sequence[str] = ()) -> Format:
    return {
        "type": "any_text",
        "excludes": list(excludes),
        "max_tokens": None,
        "max_chars": None,
    }


def triggered(
    triggers: Sequence[str],
    tags: Sequence[Format],
    *,
    excludes: Sequence[str] = (),
    at_least_one: bool = False,
) -> Format:
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": at_least_one,
        "stop_after_first": False,
        "excludes": list(excludes),
    }


def separated(
    tags: Sequence[Format], *, separator: str = "", stop_after_first: bool = False
) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": stop_after_first,
    }


def either(*elements: Format) -> Format:
    return {"type": "or", "elements": list(elements)}


def schema_of(function: dict[str, Any]) -> Any:
    """What a call's arguments must be; anything, unless the tool is strict."""
    if function.get("strict") is False or function.get("parameters") is None:
        return True
    return function["parameters"]


def hermes(functions: Sequence[dict[str, Any]], choice: Choice) -> Format:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, with or without line breaks."""
    start, end = "<tool_call>", "</tool_call>"
    ways = ((start + '\n{"name": "', "}\n" + end), (start + '{"name": "', "}" + end))
    tags = [
        tag(before + f["name"] + '", "arguments": ', json_schema(schema_of(f)), behind)
        for f in functions
        for before, behind in ways
    ]
    if choice == "auto":
        return triggered([start], tags) if tags else any_text()
    return separated(tags, stop_after_first=choice == "forced")


def llama(functions: Sequence[dict[str, Any]], choice: Choice) -> Format:
    """`{"name": …, "parameters": …}`."""
    tags = [
        tag('{"name": "' + f["name"] + '", "parameters": ', json_schema(schema_of(f)), "}")
        for f in functions
    ]
    if choice == "forced":
        return tags[0]
    if not tags:
        return any_text(_THINK)
    return triggered(['{"name": '], tags, excludes=_THINK, at_least_one=choice == "required")


def qwen3_coder(functions: Sequence[dict[str, Any]], choice: Choice) -> Format:
    """`<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`."""
    tags = [
        tag(
            f"<tool_call>\n<function={f['name']}>\n",
            json_schema(schema_of(f), style="qwen_xml"),
            "\n</function>\n</tool_call>",
        )
        for f in functions
    ]
    if choice == "forced":
        return tags[0]
    if not tags:
        return any_text(_THINK)
    return triggered(
        ["<tool_call>\n<function="], tags, excludes=_THINK, at_least_one=choice == "required"
    )


def deepseek_v3(functions: Sequence[dict[str, Any]], choice: Choice) -> Format:
    """A section of calls, each a fenced JSON object behind its name."""
    ways = [("function<｜tool▁sep｜>" + f["name"] + "\n```json\n", "\n```") for f in functions]
    return _deepseek(functions, ways, choice, separator="\n")


def deepseek_v31(functions: Sequence[dict[str, Any]], choice: Choice) -> Format:
    """A section of calls, each a JSON object behind its name."""
    ways = [(f["name"] + "<｜tool▁sep｜>", "") for f in functions]
    return _deepseek(functions, ways, choice, separator="")


def _deepseek(
    functions: Sequence[dict[str, Any]],
    ways: Sequence[tuple[str, str]],
    choice: Choice,
    *,
    separator: str,
) -> Format:
    start, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    outer = (start, end) if choice == "forced" else ("", "")  # then no section is around the call
    tags = [
        tag(
            f"{outer[0]}<｜tool▁call▁begin｜>{before}",
            json_schema(schema_of(f)),
            f"{behind}<｜tool▁call▁end｜>{outer[1]}",
        )
        for f, (before, behind) in zip(functions, ways, strict=True)
    ]
    if choice == "forced":
        return tags[0]
    if not tags:
        return any_text(_THINK)
    section = tag(start, separated(tags, separator=separator), end)
    return section if choice == "required" else triggered([start], [section], excludes=_THINK)


def completed(form: Any) -> Any:
    """A format of the request's own with what it left to defaults."""
    if isinstance(form, list):
        return [completed(entry) for entry in form]
    if not isinstance(form, dict):
        return form
    whole = {
        key: value if key == "json_schema" else completed(value) for key, value in form.items()
    }
    return whole | {
        key: value
        for key, value in _DEFAULTS.get(str(form.get("type")), {}).items()
        if key not in form
    }


def one_call(form: Any) -> Any:
    """The same format, where every list of calls ends after its first."""
    if isinstance(form, list):
        return [one_call(entry) for entry in form]
    if not isinstance(form, dict):
        return form
    if form.get("type") == "json_schema":
        return form
    copied = {key: one_call(value) for key, value in form.items()}
    if form.get("type") in ("triggered_tags", "tags_with_separator"):
        copied["stop_after_first"] = True
    return copied
